#pragma once
// How a tile's sums are finished and stored, from a warpgroup's registers (wgmma.cuh: which thread has
// which).
//
// Four neighbouring lanes have two columns each of a group of eight. They exchange values before a store, so
// that each lane writes 16 bytes and the four together whole 32-byte sectors.
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/product/tile_walk.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda {

/// What the endings need of a Linear.
struct WgmmaEndingArgs {
  Ending ending = Ending::add;
  int outputs = 0;
  int columns = 0;  ///< padded(outputs)
  void* out = nullptr;
  std::size_t stride = 0;  ///< elements of a row of out (of q for qkv)
  const float* scale = nullptr;
  void* q = nullptr;
  const float* rope = nullptr;
  KvCache kv{};
  int layer = 0;
  int heads = 0;
  const KvSlot* slots = nullptr;
  const float* bias = nullptr;  ///< with bias_ending: wgmma_biased.cuh, in whose tiles `ending` means nothing
  BiasEnding bias_ending = BiasEnding::store;
};

/// pack_two() by single conversions: the code that the kernels were measured with.
template <class T>
__device__ __forceinline__ std::uint32_t pack_singly(float low, float high) {
  const T two[2] = {from_float<T>(low), from_float<T>(high)};
  return *reinterpret_cast<const std::uint32_t*>(two);
}

/// Lane q of four gives its piece of groups 0 … 3 and gets all four pieces of group q.
__device__ __forceinline__ uint4 transpose_quad(std::uint32_t v0, std::uint32_t v1, std::uint32_t v2,
                                                std::uint32_t v3) {
  const bool odd = (threadIdx.x & 1) != 0, high = (threadIdx.x & 2) != 0;
  const std::uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? v0 : v1, 1);
  const std::uint32_t b = __shfl_xor_sync(0xffffffffu, odd ? v2 : v3, 1);
  const std::uint32_t low0 = odd ? a : v0, low1 = odd ? v1 : a;    // group odd, of the lane pair
  const std::uint32_t high0 = odd ? b : v2, high1 = odd ? v3 : b;  // group 2 + odd
  const std::uint32_t c = __shfl_xor_sync(0xffffffffu, high ? low0 : high0, 2);
  const std::uint32_t d = __shfl_xor_sync(0xffffffffu, high ? low1 : high1, 2);
  return high ? make_uint4(c, d, high0, high1) : make_uint4(low0, low1, c, d);
}

/// Lane q gives its two columns of groups j and j + 1, and gets columns 4 (q / 2) … + 3 of group j + q % 2.
__device__ __forceinline__ float4 swap_pair(float a0, float a1, float b0, float b1) {
  const bool odd = (threadIdx.x & 1) != 0;
  const float x = __shfl_xor_sync(0xffffffffu, odd ? a0 : b0, 1);
  const float y = __shfl_xor_sync(0xffffffffu, odd ? a1 : b1, 1);
  return odd ? make_float4(x, y, b0, b1) : make_float4(a0, a1, x, y);
}

__device__ __forceinline__ float silu_times(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/// The sums of one thread: rows `row` and row + 8 (below `end`), kN columns from `column`.
template <class T, int kN>
struct Sums {
  float (&d)[kN / 2];
  int row, end, column;

  __device__ __forceinline__ bool has(int half) const { return row + 8 * half < end; }
  __device__ __forceinline__ std::size_t at(int half) const {
    return static_cast<std::size_t>(row + 8 * half);
  }
};

/// Each element is added to once, so the order of the additions does not matter; no thread waits for the old
/// value.
template <bool kAdd, class T, int kN>
__device__ __forceinline__ void finish_f32(const WgmmaEndingArgs& f, const Sums<T, kN>& sums) {
  const auto& d = sums.d;
  const int lane_column = threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* out = static_cast<float*>(f.out) + sums.at(half) * f.stride + sums.column + lane_column;
#pragma unroll
    for (int j = 0; j < kN / 8; j += 2) {
      const int at = 4 * j + 2 * half;
      const float4 v = swap_pair(d[at], d[at + 1], d[at + 4], d[at + 5]);
      if (!sums.has(half) || sums.column + 8 * j >= f.columns) continue;
      if constexpr (kAdd) {
        ptx::reduce_add(out + 8 * j, v);
      } else {
        *reinterpret_cast<float4*>(out + 8 * j) = v;
      }
    }
  }
}

template <class T, int kN>
__device__ __forceinline__ void finish_scaled(const WgmmaEndingArgs& f, const Sums<T, kN>& sums) {
  const auto& d = sums.d;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    T* out = static_cast<T*>(f.out) + sums.at(half) * f.stride + sums.column + threadIdx.x % 4 * 8;
    const float scale = sums.has(half) ? __ldcg(f.scale + sums.at(half)) : 0.0f;
#pragma unroll
    for (int j = 0; j < kN / 8; j += 4) {
      std::uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (j + i) + 2 * half;
        v[i] = pack_singly<T>(d[at] * scale, d[at + 1] * scale);
      }
      const uint4 line = transpose_quad(v[0], v[1], v[2], v[3]);
      if (sums.has(half) && sums.column + 8 * j < f.columns) *reinterpret_cast<uint4*>(out + 8 * j) = line;
    }
  }
}

/// Groups 2i are gates, 2i + 1 their ups: outputs 8i … of the activation.
template <class T, int kN>
__device__ __forceinline__ void finish_swiglu(const WgmmaEndingArgs& f, const Sums<T, kN>& sums) {
  const auto& d = sums.d;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    T* out = static_cast<T*>(f.out) + sums.at(half) * f.stride + sums.column / 2 + threadIdx.x % 4 * 8;
#pragma unroll
    for (int j = 0; j < kN / 8; j += 8) {
      std::uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int gate = 4 * (j + 2 * i) + 2 * half, up = gate + 4;
        v[i] = pack_singly<T>(silu_times(d[gate], d[up]), silu_times(d[gate + 1], d[up + 1]));
      }
      const uint4 line = transpose_quad(v[0], v[1], v[2], v[3]);
      if (sums.has(half) && sums.column + 8 * j < f.columns) *reinterpret_cast<uint4*>(out + 4 * j) = line;
    }
  }
}

/// head_dim is a multiple of 64: 32 columns lie in one head of q, of k or of v, and a block's value heads
/// follow its key heads as if they were more of them.
template <class T, int kN>
__device__ __forceinline__ void finish_qkv(const WgmmaEndingArgs& f, const Sums<T, kN>& sums) {
  const auto& d = sums.d;
  const int head_dim = f.kv.head_dim, rotated_heads = f.heads + f.kv.kv_heads;
  const int quad = threadIdx.x % 4;
  const float* rope[2];
  T* q_rows[2];
  T* kv_rows[2];  // null: the row is padding and writes no key or value
  int token[2];   // of its eight in a swizzled group
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = sums.has(half) ? sums.row + 8 * half : 0;
    const KvSlot slot = f.slots == nullptr
                            ? row_slot(row)
                            : KvSlot{__ldcg(&f.slots[row].block), __ldcg(&f.slots[row].offset)};
    rope[half] = f.rope + static_cast<std::size_t>(row) * static_cast<std::size_t>(head_dim) + 2 * quad;
    q_rows[half] = static_cast<T*>(f.q) + static_cast<std::size_t>(row) * f.stride + 8 * quad;
    kv_rows[half] = nullptr;
    if (slot.block != kPaddingBlock) {
      kv_rows[half] =
          reinterpret_cast<T*>(static_cast<std::byte*>(f.kv.data) + f.kv.key_offset(slot.block, f.layer, 0)) +
          kv_index(true, head_dim, slot.offset, 0) / 64 * 64;
    }
    token[half] = slot.offset % 8;
  }

  // Pieces of 32 columns. Two that are 128 columns apart mostly have the same angles, so they are done one
  // after the other while the angles of the next ones are loaded.
  constexpr int kShare = kN == 256 ? 2 : 1, kPieces = kN / 32 / kShare;
  constexpr int kAhead = 3 - kShare;
  const bool shared = 128 % head_dim == 0;
  float2 turns[kAhead + 1][2][4];
  const auto fetch = [&](float2(&to)[2][4], int dim) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        to[half][i] = __ldcg(reinterpret_cast<const float2*>(rope[half] + dim + 8 * i));
    }
  };
  int head[kShare], dim[kShare];  // of the current piece
#pragma unroll
  for (int share = 0; share < kShare; ++share) {
    const int o = sums.column + 128 * share;
    head[share] = o / head_dim;
    dim[share] = o - head[share] * head_dim;
  }
  int next_dim = dim[0];
  const auto fetch_next = [&](float2(&to)[2][4]) {
    fetch(to, next_dim);
    next_dim = next_dim + 32 == head_dim ? 0 : next_dim + 32;
  };
#pragma unroll
  for (int piece = 0; piece < kAhead && piece < kPieces; ++piece) fetch_next(turns[piece]);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    if (piece + kAhead < kPieces) fetch_next(turns[(piece + kAhead) % (kAhead + 1)]);
    auto& turn = turns[piece % (kAhead + 1)];
#pragma unroll
    for (int share = 0; share < kShare; ++share) {
      const int j = 4 * (share * kPieces + piece), o = sums.column + 8 * j;
      const int h = head[share], in_head = dim[share];
      dim[share] = in_head + 32 == head_dim ? 0 : in_head + 32;
      head[share] = h + (in_head + 32 == head_dim);
      if (o >= f.outputs) continue;
      if (share > 0 && !shared) fetch(turn, in_head);
      const int kv_at = (h - f.heads) * (kBlockTokens * head_dim) + in_head / 64 * (kBlockTokens * 64);
      const int chunk = in_head % 64 / 8 + quad;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t v[4];
        if (h < rotated_heads) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = 4 * (j + i) + 2 * half;
            const float c = turn[half][i].x, s = turn[half][i].y;
            v[i] = pack_singly<T>(d[at] * c - d[at + 1] * s, d[at + 1] * c + d[at] * s);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            v[i] = pack_singly<T>(d[4 * (j + i) + 2 * half], d[4 * (j + i) + 2 * half + 1]);
        }
        const uint4 line = transpose_quad(v[0], v[1], v[2], v[3]);
        if (!sums.has(half)) continue;
        if (h < f.heads) {
          *reinterpret_cast<uint4*>(q_rows[half] + o) = line;
        } else if (kv_rows[half] != nullptr) {
          *reinterpret_cast<uint4*>(kv_rows[half] + kv_at + (chunk ^ token[half]) * 8) = line;
        }
      }
    }
  }
}

template <class T, int kN>
__device__ __forceinline__ void finish(const WgmmaEndingArgs& f, const Sums<T, kN>& sums) {
  switch (f.ending) {
    case Ending::store_f32: finish_f32<false>(f, sums); break;
    case Ending::store_scaled: finish_scaled(f, sums); break;
    case Ending::add: finish_f32<true>(f, sums); break;
    case Ending::swiglu:
      if constexpr (kN % 64 == 0) finish_swiglu(f, sums);
      break;
    case Ending::qkv: finish_qkv(f, sums); break;
  }
}

}  // namespace troupe::kernels::cuda
