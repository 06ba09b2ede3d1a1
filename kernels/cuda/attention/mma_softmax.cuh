#pragma once
// Softmax while keys stream by, of scores as mma.sync leaves them: tiles of 16 rows × 8 columns. Lane 4 g + t
// of a warp has rows g and g + 8 of each 16, two neighbouring columns of each.
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda {

/// Scores, -INFINITY where masked, become exp2(scale_log2 · (score - the largest score of the row so far)).
/// The largest score of each row and, of this lane's columns, the sum are brought up to date; earlier sums
/// and outputs shrink with a larger one. By whole warps.
template <int kTilesM, int kScoreTiles, int kOutputTiles>
__device__ __forceinline__ void stream_softmax(float (&scores)[kTilesM][kScoreTiles][4],
                                               float (&maximum)[kTilesM][2], float (&sum)[kTilesM][2],
                                               float (&outputs)[kTilesM][kOutputTiles][4], float scale_log2) {
  float most[kTilesM][2];
  bool grown = false;
#pragma unroll
  for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[m][i] = maximum[m][i];
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n)
        most[m][i] = fmaxf(most[m][i], fmaxf(scores[m][n][2 * i], scores[m][n][2 * i + 1]));
      most[m][i] = fmaxf(most[m][i], __shfl_xor_sync(~0u, most[m][i], 1));
      most[m][i] = fmaxf(most[m][i], __shfl_xor_sync(~0u, most[m][i], 2));
      grown = grown || most[m][i] > maximum[m][i];
    }
  }
  if (__any_sync(~0u, grown)) {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float shrink = ptx::exp2_approx((maximum[m][i] - most[m][i]) * scale_log2);
        maximum[m][i] = most[m][i];
        sum[m][i] *= shrink;
#pragma unroll
        for (int n = 0; n < kOutputTiles; ++n) {
          outputs[m][n][2 * i] *= shrink;
          outputs[m][n][2 * i + 1] *= shrink;
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float offset = maximum[m][i] * scale_log2;
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int c = 2 * i; c < 2 * i + 2; ++c) {
          scores[m][n][c] = ptx::exp2_approx(fmaf(scores[m][n][c], scale_log2, -offset));
          sum[m][i] += scores[m][n][c];
        }
      }
    }
  }
}

/// Columns 16 k … 16 k + 15 of the probabilities as the operands A of the products with values.
template <class T, int kTilesM, int kScoreTiles>
__device__ __forceinline__ void pack_probabilities(std::uint32_t (&packed)[kTilesM][4],
                                                   const float (&probabilities)[kTilesM][kScoreTiles][4],
                                                   int k) {
#pragma unroll
  for (int m = 0; m < kTilesM; ++m) {
    const float(&left)[4] = probabilities[m][2 * k];
    const float(&right)[4] = probabilities[m][2 * k + 1];
    packed[m][0] = pack_two<T>(left[0], left[1]);
    packed[m][1] = pack_two<T>(left[2], left[3]);
    packed[m][2] = pack_two<T>(right[0], right[1]);
    packed[m][3] = pack_two<T>(right[2], right[3]);
  }
}

}  // namespace troupe::kernels::cuda
