#pragma once
// How a tile of LinearBias is finished: as wgmma_endings.cuh does, after a bias. The shapes of its tiles are
// types of their own, so that kernels of other products have none of this.
#include "kernels/cuda/product/biased_four.cuh"
#include "kernels/cuda/product/wgmma_endings.cuh"
#include "kernels/linear_bias.h"

namespace troupe::kernels::cuda {

template <class T, BiasEnding kEnding>
__device__ __forceinline__ float ended(float y) {
  if constexpr (kEnding == BiasEnding::quick_gelu) return quick_gelu<T>(y);
  if constexpr (kEnding == BiasEnding::gelu) return gelu(y);
  return y;
}

/// 32 columns at a time, in registers of their own: the sums' stay as the tensor cores left them, else the
/// compiler would let no two products be under way at once.
template <BiasEnding kEnding, class T, int kN>
__device__ __forceinline__ void finish_biased(const WgmmaEndingArgs& f, const Sums<T, kN>& sums) {
  const auto& d = sums.d;
  const int quad = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < kN / 8; j += 4) {
    const int column = sums.column + 8 * j;
    if (column >= f.columns) continue;  // columns are a multiple of 32
    float y[2][8];                      // of a half: two columns of each of the four groups
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 b{};
      if (f.bias != nullptr) b = *reinterpret_cast<const float2*>(f.bias + column + 8 * i + 2 * quad);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        y[half][2 * i] = ended<T, kEnding>(d[4 * (j + i) + 2 * half] + b.x);
        y[half][2 * i + 1] = ended<T, kEnding>(d[4 * (j + i) + 2 * half + 1] + b.y);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto& v = y[half];
      if constexpr (kEnding == BiasEnding::set || kEnding == BiasEnding::add) {
        float* out =
            static_cast<float*>(f.out) + sums.at(half) * f.stride + column + quad % 2 * 8 + quad / 2 * 4;
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const float4 four = swap_pair(v[2 * i], v[2 * i + 1], v[2 * i + 2], v[2 * i + 3]);
          if (!sums.has(half)) continue;
          if constexpr (kEnding == BiasEnding::add) {
            ptx::reduce_add(out + 8 * i, four);
          } else {
            *reinterpret_cast<float4*>(out + 8 * i) = four;
          }
        }
      } else {
        const uint4 line = transpose_quad(pack_singly<T>(v[0], v[1]), pack_singly<T>(v[2], v[3]),
                                          pack_singly<T>(v[4], v[5]), pack_singly<T>(v[6], v[7]));
        T* out = static_cast<T*>(f.out) + sums.at(half) * f.stride + column + quad * 8;
        if (sums.has(half)) *reinterpret_cast<uint4*>(out) = line;
      }
    }
  }
}

template <class T, int kN>
__device__ __forceinline__ void finish_biased(const WgmmaEndingArgs& f, const Sums<T, kN>& sums) {
  switch (f.bias_ending) {
    case BiasEnding::store: return finish_biased<BiasEnding::store>(f, sums);
    case BiasEnding::quick_gelu: return finish_biased<BiasEnding::quick_gelu>(f, sums);
    case BiasEnding::gelu: return finish_biased<BiasEnding::gelu>(f, sums);
    case BiasEnding::set: return finish_biased<BiasEnding::set>(f, sums);
    case BiasEnding::add: return finish_biased<BiasEnding::add>(f, sums);
  }
}

}  // namespace troupe::kernels::cuda
