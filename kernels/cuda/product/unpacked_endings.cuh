#pragma once
// How the sums of a tile of unpacked codes are finished and stored. Sums are outputs × rows of x; a warp has
// 32 neighbouring outputs of all rows of the tile, a thread outputs 8 n + g (n: 0 … 3) of rows 8 j + 2 t and
// 8 j + 2 t + 1. bf16 results are transposed in registers, so that a lane stores 16 bytes of one row.
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product/unpacked_shape.cuh"

namespace troupe::kernels::cuda {

/// A thread's sums times the scales of their outputs.
template <class Kind>
class UnpackedTileSums {
 public:
  static constexpr int kEights = kUnpackedRows / 8;

  const UnpackedProduct& product;
  const ProductTile& tile;
  const int first;  ///< output of the warp
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;

  __device__ __forceinline__ UnpackedTileSums(const UnpackedProduct& product, const ProductTile& tile,
                                              int first, const typename Kind::Sums& sums)
      : product(product), tile(tile), first(first), sums_(sums) {
    if constexpr (Kind::Codes::kOutputScales) {
      const auto* scales = reinterpret_cast<const float*>(
          product.codes + static_cast<std::size_t>(tile.group) * product.group_bytes + product.scales_at);
#pragma unroll
      for (int n = 0; n < 4; ++n) scales_[n] = __ldg(scales + first + 8 * n + g);
    }
  }

  /// Output 8 n + g of row 8 j + 2 t + right.
  __device__ __forceinline__ float at(int n, int j, int right) const {
    const auto sum = sums_[n / 2][4 * j + n % 2 * 2 + right];
    if constexpr (Kind::kInt8) return static_cast<float>(sum) * Int4BesideInt8::kFactor * scales_[n];
    if constexpr (!Kind::Codes::kOutputScales) return sum;
    return sum * scales_[n];
  }
  /// True if the tile has rows 8 j …
  __device__ __forceinline__ bool has_eight(int j) const { return tile.row + 8 * j < tile.end; }

 private:
  const typename Kind::Sums& sums_;
  float scales_[4];
};

/// Scales of a tile's rows: lane l has those of rows l, l + 32, …
class UnpackedRowScales {
 public:
  template <class Sums>
  __device__ __forceinline__ explicit UnpackedRowScales(const Sums& y) : t_(y.t) {
#pragma unroll
    for (int i = 0; i < kUnpackedRows / 32; ++i) {
      const int p = y.tile.row + 32 * i + y.lane;
      scales_[i] = p < y.tile.end ? __ldcg(y.product.scale + p) : 0.0f;
    }
  }
  /// Of row 8 j + 2 t + right. A whole warp.
  __device__ __forceinline__ float at(int j, int right) const {
    return __shfl_sync(~0u, scales_[j / 4], j % 4 * 8 + 2 * t_ + right);
  }

 private:
  int t_;
  float scales_[kUnpackedRows / 32];
};

struct NoRowScales {
  __device__ __forceinline__ float at(int, int) const { return 1; }
};

/// Of eight outputs × eight rows of x, given two rows of output g: two outputs of row g.
__device__ __forceinline__ std::uint32_t transposed_pair(float left, float right) {
  return ptx::movmatrix_transposed(pack_two<Bf16>(left, right));
}

template <class Sums>
__device__ __forceinline__ void finish_unpacked_scaled(const Sums& y) {
  const UnpackedRowScales scales(y);
  Bf16* const out = y.product.out + y.first + 8 * y.t;
#pragma unroll
  for (int j = 0; j < Sums::kEights; ++j) {
    if (!y.has_eight(j)) break;
    const float left = scales.at(j, 0), right = scales.at(j, 1);
    std::uint32_t v[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) v[n] = transposed_pair(left * y.at(n, j, 0), right * y.at(n, j, 1));
    const uint4 line = transpose_quad(v[0], v[1], v[2], v[3]);
    const int p = y.tile.row + 8 * j + y.g;
    if (p < y.tile.end)
      *reinterpret_cast<uint4*>(out + static_cast<std::size_t>(p) * y.product.stride) = line;
  }
}

/// Eights n = 0 and 2 are gates, 1 and 3 their ups: a warp has 16 outputs of the activation.
/// `scales`: of rows, which multiply both sums, which are then rounded; or NoRowScales.
template <class Scales, class Sums>
__device__ __forceinline__ void finish_unpacked_swiglu(const Sums& y, const Scales& scales) {
  const auto activated = [](float gate, float up, float scale) {
    if constexpr (std::is_same_v<Scales, NoRowScales>) return silu_times(gate, up);
    const auto rounded = [&](float sum) { return to_float(from_float<Bf16>(scale * sum)); };
    return silu_times(rounded(gate), rounded(up));
  };
  const std::size_t stride = y.product.stride;
  Bf16* const out = y.product.out + y.first / 2;
#pragma unroll
  for (int j = 0; j < Sums::kEights; j += 2) {
    if (!y.has_eight(j)) break;
    std::uint32_t v[4];  // of eight outputs, then the next eight; of rows 8 j …, then the next eight
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = i % 2 * 2, k = j + i / 2;
      v[i] = transposed_pair(activated(y.at(n, k, 0), y.at(n + 1, k, 0), scales.at(k, 0)),
                             activated(y.at(n, k, 1), y.at(n + 1, k, 1), scales.at(k, 1)));
    }
    if (y.product.interleaves_out) {
      const int column = y.first / 2;
      Bf16* const block = y.product.out + column / 32 * 32 + 8 * y.t + column / 8 % 4 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int p = y.tile.row + 8 * (j + i) + y.g;
        if (p < y.tile.end)
          *reinterpret_cast<uint2*>(block + static_cast<std::size_t>(p) * stride) =
              make_uint2(v[2 * i], v[2 * i + 1]);
      }
    } else {
      const uint4 line = transpose_quad(v[0], v[1], v[2], v[3]);
      const int p = y.tile.row + 8 * (j + y.t / 2) + y.g;
      if (p < y.tile.end)
        *reinterpret_cast<uint4*>(out + static_cast<std::size_t>(p) * stride + y.t % 2 * 8) = line;
    }
  }
}

/// Scales, ends and stores the sums of a tile. `first` is the warp's first output.
template <class Kind>
__device__ __forceinline__ void finish_unpacked(const UnpackedProduct& product, const ProductTile& tile,
                                                int first, const typename Kind::Sums& sums) {
  if (first >= product.outputs) return;  // outputs are a multiple of 32
  const UnpackedTileSums<Kind> y(product, tile, first, sums);
  if (product.ending == Ending::store_scaled) return finish_unpacked_scaled(y);
  if constexpr (Kind::kInt8) return finish_unpacked_swiglu(y, UnpackedRowScales(y));
  finish_unpacked_swiglu(y, NoRowScales());
}

}  // namespace troupe::kernels::cuda
