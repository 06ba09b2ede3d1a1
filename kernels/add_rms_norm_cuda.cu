#include <type_traits>

#include "base/check.h"
#include "kernels/add_rms_norm.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/quantise.cuh"
#include "kernels/quantise_rows.h"
#include "kernels/quantize.h"

namespace troupe::kernels {
namespace {

using cuda::kNormThreads;
using cuda::kNormTogether;
using cuda::load_four;

struct AddNormArgs {
  void* out;
  float* residual;
  const float* add;
  const float* weight;
  const std::int32_t* pick;
  int cols, stride;
  float eps;
  std::uint8_t* codes;
  float* scales;
  int code_stride;
};

// One block per row. Padding columns of `residual` and `weight` are zero, so those of `out` become zero.
// With Coded a warp's 128 columns are a block of fp8 codes. Each thread holds kHeld times four columns in
// registers; those behind are read twice. No more than the row has: with fewer registers more rows are under
// way.
template <class Element, bool Coded, int kHeld>
__global__ void __launch_bounds__(kNormThreads) norm_kernel(AddNormArgs a) {
  const int first = threadIdx.x * 4;
  float4 weight[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = first + k * kNormTogether;
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
  const auto take = [&](float4 v) { squares += cuda::squares_of(v); };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = first + k * kNormTogether;
    if (i < a.stride) take(held[k] = value(i));
  }
  for (int i = first + kHeld * kNormTogether; i < a.stride; i += kNormTogether) take(value(i));
  const float factor = cuda::norm_factor(squares, a.cols, a.eps);

  Element* out = static_cast<Element*>(a.out) + at;
  const auto finish = [&](int i, float4 v, float4 w) {  // returns what is stored
    if (a.add) *reinterpret_cast<float4*>(h + i) = v;
    const float4 y = cuda::normed<Element>(v, factor, w);
    if (!Coded || a.out != nullptr) cuda::store_four(out + i, y.x, y.y, y.z, y.w);
    const auto rounded = [](float x) { return cuda::rounded<Element>(x); };
    return make_float4(rounded(y.x), rounded(y.y), rounded(y.z), rounded(y.w));
  };
  if constexpr (Coded) {
    static_assert(kFp8Block == 32 * 4);
    const std::size_t code_row = static_cast<std::size_t>(blockIdx.x) * a.code_stride;
    const auto encode = [&](int i, float4 y) {
      const float magnitude =
          cuda::warp_magnitude(max(max(cuda::magnitude_bits(y.x), cuda::magnitude_bits(y.y)),
                                   max(cuda::magnitude_bits(y.z), cuda::magnitude_bits(y.w))));
      const float scale = __fdiv_rn(magnitude, kLargestFp8);
      *reinterpret_cast<std::uint32_t*>(a.codes + code_row + i) = cuda::fp8_codes(y.x, y.y, y.z, y.w, scale);
      if (threadIdx.x % 32 == 0) a.scales[(code_row + i) / kFp8Block] = scale;
    };
    // Whole warps, also where a row of codes is longer than one of x.
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = first + k * kNormTogether;
      if (i < a.code_stride) encode(i, i < a.stride ? finish(i, held[k], weight[k]) : float4{});
    }
    for (int i = first + kHeld * kNormTogether; i < a.code_stride; i += kNormTogether)
      encode(i, i < a.stride ? finish(i, value(i), load_four(a.weight + i)) : float4{});
  } else {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = first + k * kNormTogether;
      if (i < a.stride) finish(i, held[k], weight[k]);
    }
    for (int i = first + kHeld * kNormTogether; i < a.stride; i += kNormTogether)
      finish(i, value(i), load_four(a.weight + i));
  }
}

}  // namespace

void run(Cuda& device, const AddRmsNorm& op) {
  TROUPE_CHECK(op.add == nullptr || op.pick == nullptr);
  TROUPE_CHECK(op.out != nullptr || op.codes != nullptr);
  const AddNormArgs arguments{
      op.out,    op.residual,          op.add, op.weight, op.pick, op.cols, padded(op.cols), op.eps, op.codes,
      op.scales, coded_stride(op.cols)};
  const troupe::cuda::Shape shape{.grid = unsigned(op.rows),
                                  .block = kNormThreads,
                                  .overlap = {.reads_constant = op.weight, .writes_settled = op.out}};
  const int columns = op.codes != nullptr ? coded_stride(op.cols) : padded(op.cols);
  cuda::with_element(op.dtype, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&](auto coded, auto held) {
      troupe::cuda::launch(device, norm_kernel<T, decltype(coded)::value, decltype(held)::value>, shape,
                           arguments);
    };
    const auto launch_held = [&](auto coded) {
      if (columns <= kNormTogether) return launch(coded, std::integral_constant<int, 1>());
      if (columns <= 3 * kNormTogether) return launch(coded, std::integral_constant<int, 3>());
      launch(coded, std::integral_constant<int, 8>());
    };
    op.codes != nullptr ? launch_held(std::true_type()) : launch_held(std::false_type());
  });
}

}  // namespace troupe::kernels
