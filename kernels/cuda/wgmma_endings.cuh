#pragma once
// What becomes of a tile's sums, straight from a warpgroup's registers (wgmma.cuh says who holds what).
//
// Four neighbouring lanes hold two columns each of an 8-column group. Before a store they swap, so that each
// lane writes 16 bytes and the four of them whole 32-byte sectors of memory.
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/tile_walk.cuh"
#include "kernels/cuda/tma.cuh"

namespace troupe::kernels::cuda {

/// What the endings need of a Linear.
struct Finish {
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
};

template <class T>
__device__ __forceinline__ std::uint32_t pack_two(float low, float high) {
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

/// Each element is added to once, so the order of the additions does not matter; nobody waits for the old
/// value.
template <bool kAdd, class T, int kN>
__device__ __forceinline__ void finish_f32(const Finish& f, const Sums<T, kN>& sums) {
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
        troupe::cuda::add_to_memory(out + 8 * j, v);
      } else {
        *reinterpret_cast<float4*>(out + 8 * j) = v;
      }
    }
  }
}

template <class T, int kN>
__device__ __forceinline__ void finish_scaled(const Finish& f, const Sums<T, kN>& sums) {
  const auto& d = sums.d;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    T* out = static_cast<T*>(f.out) + sums.at(half) * f.stride + sums.column + threadIdx.x % 4 * 8;
    const float scale = sums.has(half) ? __ldg(f.scale + sums.at(half)) : 0.0f;
#pragma unroll
    for (int j = 0; j < kN / 8; j += 4) {
      std::uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (j + i) + 2 * half;
        v[i] = pack_two<T>(d[at] * scale, d[at + 1] * scale);
      }
      const uint4 line = transpose_quad(v[0], v[1], v[2], v[3]);
      if (sums.has(half) && sums.column + 8 * j < f.columns) *reinterpret_cast<uint4*>(out + 8 * j) = line;
    }
  }
}

/// Groups 2i are gates, 2i + 1 their ups: outputs 8i … of the activation.
template <class T, int kN>
__device__ __forceinline__ void finish_swiglu(const Finish& f, const Sums<T, kN>& sums) {
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
        v[i] = pack_two<T>(silu_times(d[gate], d[up]), silu_times(d[gate + 1], d[up + 1]));
      }
      const uint4 line = transpose_quad(v[0], v[1], v[2], v[3]);
      if (sums.has(half) && sums.column + 8 * j < f.columns) *reinterpret_cast<uint4*>(out + 4 * j) = line;
    }
  }
}

/// head_dim is a multiple of 64: 32 columns lie in one head of q, of k or of v.
template <class T, int kN>
__device__ __forceinline__ void finish_qkv(const Finish& f, const Sums<T, kN>& sums) {
  const auto& d = sums.d;
  const int head_dim = f.kv.head_dim;
  const int keys_at = f.heads * head_dim, values_at = keys_at + f.kv.kv_heads * head_dim;
  const int quad = threadIdx.x % 4;
  const KvSlot nowhere{kPaddingBlock, 0};
  const KvSlot slots[2] = {sums.has(0) ? f.slots[sums.at(0)] : nowhere,
                           sums.has(1) ? f.slots[sums.at(1)] : nowhere};
  // Pieces of 32 columns. Two that are 128 columns apart mostly have the same angles: they follow each other,
  // and the angles of the next ones are on their way.
  constexpr int kShare = kN == 256 ? 2 : 1, kPieces = kN / 32 / kShare;
  constexpr int kAhead = 3 - kShare;
  const bool shared = 128 % head_dim == 0;
  float2 turns[kAhead + 1][2][4];
  const auto fetch = [&](float2(&to)[2][4], int o) {
    const int dim = o % head_dim;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = sums.has(half) ? sums.row + 8 * half : 0;
      const float* rope = f.rope + row * head_dim + dim + 2 * quad;
#pragma unroll
      for (int i = 0; i < 4; ++i) to[half][i] = __ldg(reinterpret_cast<const float2*>(rope + 8 * i));
    }
  };
#pragma unroll
  for (int piece = 0; piece < kAhead && piece < kPieces; ++piece)
    fetch(turns[piece], sums.column + 32 * piece);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int next = piece + kAhead;
    if (next < kPieces) fetch(turns[next % (kAhead + 1)], sums.column + 32 * next);
    auto& turn = turns[piece % (kAhead + 1)];
#pragma unroll
    for (int share = 0; share < kShare; ++share) {
      const int j = 4 * (share * kPieces + piece), o = sums.column + 8 * j;
      if (share > 0 && !shared) fetch(turn, o);
      if (o >= f.outputs) continue;
      const int head = o / head_dim, dim = o - head * head_dim;
      const bool rotated = o < values_at;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 4 * (j + i) + 2 * half;
          const float c = rotated ? turn[half][i].x : 1.0f, s = rotated ? turn[half][i].y : 0.0f;
          v[i] = pack_two<T>(d[at] * c - d[at + 1] * s, d[at + 1] * c + d[at] * s);
        }
        const uint4 line = transpose_quad(v[0], v[1], v[2], v[3]);
        if (!sums.has(half)) continue;
        T* to = nullptr;
        if (o < keys_at) {
          to = static_cast<T*>(f.q) + sums.at(half) * f.stride + o + quad * 8;
        } else if (slots[half].block != kPaddingBlock) {
          const int kv_head = head - f.heads;
          const std::size_t at = rotated
                                     ? f.kv.key_offset(slots[half].block, f.layer, kv_head)
                                     : f.kv.value_offset(slots[half].block, f.layer, kv_head - f.kv.kv_heads);
          to = reinterpret_cast<T*>(static_cast<std::byte*>(f.kv.data) + at) +
               kv_index(true, head_dim, slots[half].offset, dim + quad * 8);
        }
        if (to != nullptr) *reinterpret_cast<uint4*>(to) = line;
      }
    }
  }
}

template <class T, int kN>
__device__ __forceinline__ void finish(const Finish& f, const Sums<T, kN>& sums) {
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
