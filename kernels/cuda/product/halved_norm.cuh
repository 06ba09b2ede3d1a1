#pragma once
// The second half of a halved norm (HalvedNorm in linear.h), for kernels that multiply their sums by a row's
// factor and are no strips or slabs.
#include "kernels/cuda/product/linear.h"

namespace troupe::kernels::cuda {

struct ConsumedNorm {
  const float* squares = nullptr;  ///< (rows, sums); null: x is normed
  int sums = 0;
  float inverse_cols = 0, eps = 0;

  ConsumedNorm() = default;
  explicit ConsumedNorm(const HalvedNorm& half)
      : squares(half.squares),
        sums(half.squares != nullptr ? sums_of_squares(half.cols, half.squares_per_sum) : 0),
        inverse_cols(half.cols > 0 ? 1.0f / static_cast<float>(half.cols) : 0.0f),
        eps(half.eps) {}

  /// 1 / sqrt(mean of the squares + eps) of a row, in all lanes. Called by a whole warp. Reads past L1, as
  /// the sums may be settled ones (launch.cuh).
  __device__ __forceinline__ float factor(int row) const {
    const float* const from = squares + row * sums;
    constexpr int kLoads = 8;  // under way together
    float sum = 0;
    for (int first = static_cast<int>(threadIdx.x) % 32 * 4; first < sums; first += kLoads * 32 * 4) {
      float4 four[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int at = first + i * 32 * 4;
        four[i] = at < sums ? __ldcg(reinterpret_cast<const float4*>(from + at)) : float4{};
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) sum += four[i].x + four[i].y + (four[i].z + four[i].w);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    return rsqrtf(sum * inverse_cols + eps);
  }
};

}  // namespace troupe::kernels::cuda
