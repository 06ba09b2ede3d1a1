#pragma once
// The first half of a halved norm (HalvedNorm in linear.h), as strips and slabs make it.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda {

/// Produces the halved norm of outputs o … o + 3 of row n of the stream. kLanes neighbouring lanes have the
/// neighbouring outputs of a sum of squares; all of them have a row, or none. One lane has those of a small
/// sum.
template <int kLanes>
struct NormProducer {
  const bool wanted, small_sums;
  float4 weight{};
  Bf16* weighted = nullptr;
  float* squares = nullptr;

  __device__ __forceinline__ NormProducer(const HalvedNorm& half, bool mine, int n, int o, int outputs)
      : wanted(half.weighted != nullptr),
        small_sums(kLanes > 1 && half.squares_per_sum == kSquaresPerSmallSum) {
    if (!wanted || !mine) return;
    const int at = n * outputs + o;
    weight = *reinterpret_cast<const float4*>(half.weight + o);
    weighted = static_cast<Bf16*>(half.weighted) + at;
    squares = half.squares + at / (small_sums ? kSquaresPerSmallSum : kLanes * 4);
    ptx::materialize(weighted);
    ptx::materialize(squares);
  }
  __device__ __forceinline__ void store(float4 h) const {
    if (!wanted) return;
    store_four(weighted, h.x * weight.x, h.y * weight.y, h.z * weight.z, h.w * weight.w);
    float sum = h.x * h.x + h.y * h.y + h.z * h.z + h.w * h.w;
    if (small_sums) {
      *squares = sum;
      return;
    }
    constexpr unsigned kMask = (1u << kLanes) - 1, kFirst = ~unsigned{kLanes - 1};
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2)
      sum += __shfl_xor_sync(kMask << (threadIdx.x % 32 & kFirst), sum, distance);
    if (threadIdx.x % kLanes == 0) *squares = sum;
  }
};

}  // namespace troupe::kernels::cuda
