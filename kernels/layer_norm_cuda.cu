#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/layer_norm.h"

namespace troupe::kernels {
namespace {

using cuda::kNormThreads;
using cuda::kNormTogether;
using cuda::load_four;

struct LayerNormArgs {
  void* out;
  const float* x;
  const float* weight;
  const float* bias;
  int cols, stride;
  float eps;
};

// One block per row. Each thread holds kHeld times four columns in registers; those behind are read again.
// The variance is of differences from the mean, as the CPU's: squares of large numbers would swallow it.
template <class Element, int kHeld>
__global__ void __launch_bounds__(kNormThreads) layer_norm_kernel(LayerNormArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int first = static_cast<int>(threadIdx.x) * 4;
  const std::size_t at = static_cast<std::size_t>(blockIdx.x) * a.stride;
  const float* x = a.x + at;
  float4 held[kHeld];
  const auto visit = [&](auto&& take) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = first + k * kNormTogether;
      if (i < a.stride) take(i, held[k]);
    }
    for (int i = first + kHeld * kNormTogether; i < a.stride; i += kNormTogether) take(i, load_four(x + i));
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = first + k * kNormTogether;
    if (i < a.stride) held[k] = load_four(x + i);
  }
  float sum = 0;  // the padding of x is zero
  visit([&](int, float4 v) { sum += (v.x + v.y) + (v.z + v.w); });
  const float mean = cuda::block_sum(sum) / static_cast<float>(a.cols);
  __syncthreads();  // block_sum() uses its memory again
  const auto off = [&](int i, float value) { return i < a.cols ? value - mean : 0.0f; };
  float squares = 0;
  visit([&](int i, float4 v) {
    squares += cuda::squares_of(make_float4(off(i, v.x), off(i + 1, v.y), off(i + 2, v.z), off(i + 3, v.w)));
  });
  const float factor = cuda::norm_factor(squares, a.cols, a.eps);
  Element* out = static_cast<Element*>(a.out) + at;
  visit([&](int i, float4 v) {
    const float4 w = load_four(a.weight + i), b = load_four(a.bias + i);
    const auto normed = [&](int column, float value, float weight, float bias) {
      return column < a.cols ? fmaf((value - mean) * factor, weight, bias) : 0.0f;
    };
    cuda::store_four(out + i, normed(i, v.x, w.x, b.x), normed(i + 1, v.y, w.y, b.y),
                     normed(i + 2, v.z, w.z, b.z), normed(i + 3, v.w, w.w, b.w));
  });
}

}  // namespace

void run(Cuda& device, const LayerNorm& op) {
  const LayerNormArgs arguments{op.out, op.x, op.weight, op.bias, op.cols, padded(op.cols), op.eps};
  const troupe::cuda::Shape shape{.grid = unsigned(op.rows), .block = kNormThreads};
  cuda::with_element(op.dtype, [&](auto element) {
    using T = decltype(element);
    if (padded(op.cols) <= 2 * kNormTogether) {
      troupe::cuda::launch(device, layer_norm_kernel<T, 2>, shape, arguments);
    } else {
      troupe::cuda::launch(device, layer_norm_kernel<T, 6>, shape, arguments);
    }
  });
}

}  // namespace troupe::kernels
