#include "base/check.h"
#include "kernels/add_rms_norm.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kHeld =
    8;  // groups of four columns per thread in registers: 8,192 columns; further columns are read twice

struct AddNormArgs {
  void* out;
  float* residual;
  const float* add;
  const float* weight;
  const std::int32_t* pick;
  int cols, stride;
  float eps;
};

__device__ __forceinline__ float4 load_four(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

// A fixed order of additions, whatever the batch: within lanes, then across lanes, then warps in order.
__device__ float block_sum(float value) {
  __shared__ float warps[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += warps[w];
  return sum;
}

// One block per row. Padding columns of `residual` and `weight` are zero, so those of `out` become zero.
template <class Element>
__global__ void __launch_bounds__(kThreads) norm_kernel(AddNormArgs a) {
  const int first = threadIdx.x * 4;
  float4 weight[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = first + k * kThreads * 4;
    if (i < a.stride) weight[k] = load_four(a.weight + i);  // constant while the step runs
  }
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const std::size_t at = static_cast<std::size_t>(blockIdx.x) * a.stride;
  float* h = a.residual + (a.pick ? static_cast<std::size_t>(a.pick[blockIdx.x]) * a.stride : at);
  const auto value = [&](int i) {
    float4 v = load_four(h + i);
    if (a.add) {
      const float4 more = load_four(a.add + at + i);
      v = make_float4(v.x + more.x, v.y + more.y, v.z + more.z, v.w + more.w);
    }
    return v;
  };
  float4 held[kHeld];
  float squares = 0;
  const auto take = [&](float4 v) { squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = first + k * kThreads * 4;
    if (i < a.stride) take(held[k] = value(i));
  }
  for (int i = first + kHeld * kThreads * 4; i < a.stride; i += kThreads * 4) take(value(i));
  const float factor = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(a.cols) + a.eps);

  Element* out = static_cast<Element*>(a.out) + at;
  const auto finish = [&](int i, float4 v, float4 w) {
    if (a.add) *reinterpret_cast<float4*>(h + i) = v;
    const auto normed = [&](float x) { return cuda::to_float(cuda::from_float<Element>(x * factor)); };
    cuda::store_four(out + i, normed(v.x) * w.x, normed(v.y) * w.y, normed(v.z) * w.z, normed(v.w) * w.w);
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = first + k * kThreads * 4;
    if (i < a.stride) finish(i, held[k], weight[k]);
  }
  for (int i = first + kHeld * kThreads * 4; i < a.stride; i += kThreads * 4)
    finish(i, value(i), load_four(a.weight + i));
}

}  // namespace

void run(Cuda& device, const AddRmsNorm& op) {
  TROUPE_CHECK(op.add == nullptr || op.pick == nullptr);
  const AddNormArgs arguments{op.out,  op.residual, op.add,          op.weight,
                              op.pick, op.cols,     padded(op.cols), op.eps};
  cuda::with_element(op.dtype, [&](auto element) {
    troupe::cuda::launch(device, norm_kernel<decltype(element)>,
                         {.grid = unsigned(op.rows),
                          .block = kThreads,
                          .overlap = {.reads_constant = op.weight}},
                         arguments);
  });
}

}  // namespace troupe::kernels
