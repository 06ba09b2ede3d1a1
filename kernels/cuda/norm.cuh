#pragma once
// RMSNorm of a row, for the kernels that make one: all get the same bits.
#include <cuda_runtime.h>

#include "kernels/cuda/element.cuh"

namespace troupe::kernels::cuda {

inline constexpr int kNormThreads = 256;
inline constexpr int kNormTogether = kNormThreads * 4;  ///< columns that so many threads take at a time

__device__ __forceinline__ float4 load_four(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

/// Spelt out, because the compiler may choose which of two products to round.
__device__ __forceinline__ float squares_of(float4 v) {
  return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, __fmul_rn(v.x, v.x))));
}

/// The sum of kNormThreads values, in an order that is the same for every batch: across lanes, then warps.
/// All threads of the block take part, which are so many.
__device__ __forceinline__ float block_sum(float value) {
  constexpr int kWarps = kNormThreads / 32;
  __shared__ float warps[kWarps];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += warps[w];
  return sum;
}

/// 1 / sqrt(mean of the squares + eps); `squares`: of the columns that the thread has, in rising order.
__device__ __forceinline__ float norm_factor(float squares, int cols, float eps) {
  return 1.0f / sqrtf(block_sum(squares) / static_cast<float>(cols) + eps);
}

template <class Element>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<Element>(x));
}

/// Four columns of a normed row, not yet rounded to Element.
template <class Element>
__device__ __forceinline__ float4 normed(float4 h, float factor, float4 weight) {
  return make_float4(rounded<Element>(h.x * factor) * weight.x, rounded<Element>(h.y * factor) * weight.y,
                     rounded<Element>(h.z * factor) * weight.z, rounded<Element>(h.w * factor) * weight.w);
}

}  // namespace troupe::kernels::cuda
