#pragma once
// What becomes of a product's sums, four outputs of one row at a time, and which rows and group a tile of a
// grouped product has. Shared by the generic and the streaming products.
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/linear.h"

namespace troupe::kernels::cuda {

/// A Linear's ending as a kernel wants it.
struct EndingArgs {
  Ending ending = Ending::add;
  int outputs = 0;     ///< rows of the weight with padding: padded(weight.outputs)
  int out_stride = 0;  ///< elements from one row of out to the next
  void* out = nullptr;
  const float* scale = nullptr;
  // qkv
  void* q = nullptr;
  const float* rope = nullptr;
  const KvSlot* slots = nullptr;
  KvCache kv{};
  int layer = 0;
  int keys_at = 0;    ///< heads * head_dim
  int values_at = 0;  ///< keys_at + kv_heads * head_dim
  int end = 0;        ///< values_at + kv_heads * head_dim
  bool kv_swizzled = false;
};

inline EndingArgs ending_of(const Linear& linear) {
  const int outputs = padded(linear.weight.outputs);
  EndingArgs e{.ending = linear.ending,
               .outputs = outputs,
               .out_stride = linear.ending == Ending::swiglu ? padded(linear.weight.outputs / 2) : outputs,
               .out = linear.out,
               .scale = linear.scale};
  if (linear.ending == Ending::qkv) {
    e.q = linear.q;
    e.rope = linear.rope;
    e.slots = linear.slots;
    e.kv = linear.kv;
    e.layer = linear.layer;
    e.keys_at = linear.heads * linear.kv.head_dim;
    e.values_at = e.keys_at + linear.kv.kv_heads * linear.kv.head_dim;
    e.end = e.values_at + linear.kv.kv_heads * linear.kv.head_dim;
    e.kv_swizzled = swizzled(linear.kv.dtype, linear.kv.head_dim);
  }
  return e;
}

/// x / (1 + e^-x).
template <class T>
__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + (sizeof(T) == 4 ? expf(-x) : __expf(-x)));
}

template <class T>
__device__ __forceinline__ void store_two(T* to, float a, float b) {
  const T two[2] = {from_float<T>(a), from_float<T>(b)};
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<std::uint32_t*>(to) = *reinterpret_cast<const std::uint32_t*>(two);
  } else {
    *reinterpret_cast<float2*>(to) = *reinterpret_cast<const float2*>(two);
  }
}

/// Outputs o and o + 1 (o even) of q, k and v, of row p.
template <class T>
__device__ __forceinline__ void end_qkv(const EndingArgs& e, int p, int o, float a, float b) {
  if (o >= e.end) return;
  const int head_dim = e.kv.head_dim;
  const bool value = o >= e.values_at;
  const int at = value ? o - e.values_at : o >= e.keys_at ? o - e.keys_at : o;
  const int head = at / head_dim;
  const int d = at - head * head_dim;
  if (!value) {
    const float2 angle = *reinterpret_cast<const float2*>(
        e.rope + static_cast<std::size_t>(p) * static_cast<std::size_t>(head_dim) + d);
    const float even = a * angle.x - b * angle.y;
    b = b * angle.x + a * angle.y;
    a = even;
  }
  if (o < e.keys_at) {
    const int width = padded(e.keys_at);
    T* row = static_cast<T*>(e.q) + static_cast<std::size_t>(p) * static_cast<std::size_t>(width);
    store_two(row + o, a, b);
    if (o + 2 == e.keys_at) {
      for (int i = e.keys_at; i < width; ++i) row[i] = from_float<T>(0.0f);
    }
    return;
  }
  const KvSlot slot = e.slots[p];
  if (slot.block == kPaddingBlock) return;
  const std::size_t offset =
      value ? e.kv.value_offset(slot.block, e.layer, head) : e.kv.key_offset(slot.block, e.layer, head);
  T* piece = reinterpret_cast<T*>(static_cast<char*>(e.kv.data) + offset);
  store_two(piece + kv_index(e.kv_swizzled, head_dim, slot.offset, d), a, b);
}

/// Outputs o … o + 3 (o a multiple of 4, < e.outputs) of row p. For swiglu these are gates, and `up` the
/// outputs 8 further.
template <class T>
__device__ __forceinline__ void end_four(const EndingArgs& e, int p, int o, float4 y, float4 up) {
  const std::size_t row = static_cast<std::size_t>(p) * static_cast<std::size_t>(e.out_stride);
  switch (e.ending) {
    case Ending::store_f32: *reinterpret_cast<float4*>(static_cast<float*>(e.out) + row + o) = y; break;
    case Ending::add: {
      auto* to = reinterpret_cast<float4*>(static_cast<float*>(e.out) + row + o);
      float4 sum = *to;
      sum.x += y.x;
      sum.y += y.y;
      sum.z += y.z;
      sum.w += y.w;
      *to = sum;
      break;
    }
    case Ending::store_scaled: {
      const float s = e.scale[p];
      store_four(static_cast<T*>(e.out) + row + o, s * y.x, s * y.y, s * y.z, s * y.w);
      break;
    }
    case Ending::swiglu:
      store_four(static_cast<T*>(e.out) + row + (o / 16 * 8 + o % 8), silu<T>(y.x) * up.x,
                 silu<T>(y.y) * up.y, silu<T>(y.z) * up.z, silu<T>(y.w) * up.w);
      break;
    case Ending::qkv:
      end_qkv<T>(e, p, o, y.x, y.y);
      end_qkv<T>(e, p, o + 2, y.z, y.w);
      break;
  }
}

/// Brings near what end_four() of these outputs will read; after wait_for_previous().
__device__ __forceinline__ void touch_four(const EndingArgs& e, int p, int o) {
  const auto touch = [](const void* at) {
    asm volatile("{\n.reg .b32 unused;\nld.global.ca.b32 unused, [%0];\n}" ::"l"(at));
  };
  switch (e.ending) {
    case Ending::add:
      touch(static_cast<const float*>(e.out) +
            static_cast<std::size_t>(p) * static_cast<std::size_t>(e.out_stride) + o);
      break;
    case Ending::store_scaled: touch(e.scale + p); break;
    case Ending::qkv:
      if (o < e.values_at)
        touch(e.rope + static_cast<std::size_t>(p) * static_cast<std::size_t>(e.kv.head_dim) +
              o % e.kv.head_dim);
      if (o >= e.keys_at) touch(e.slots + p);
      break;
    default: break;
  }
}

/// Rows of one tile: those of group `group` from `first`, `count` of them (0: nothing to do).
struct RowTile {
  int group = 0;
  int first = 0;
  int count = 0;
};

/// The tile-th of all groups' tiles of `size` rows, group after group. Called by whole warps.
__device__ __forceinline__ RowTile find_rows(const std::int32_t* offsets, int groups, int rows, int size,
                                             int tile) {
  if (offsets == nullptr) return {0, tile * size, min(size, rows - tile * size)};
  constexpr int kOfLane = 4;  // neighbouring groups
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int base = 0; base < groups; base += 32 * kOfLane) {
    const int g = base + lane * kOfLane;
    int at[kOfLane + 1], tiles[kOfLane], sum = 0;
#pragma unroll
    for (int i = 0; i <= kOfLane; ++i) at[i] = offsets[min(g + i, groups)];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      tiles[i] = (at[i + 1] - at[i] + size - 1) / size;
      sum += tiles[i];
    }
    int before = sum;  // then: tiles of the lanes up to this one
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    const unsigned here = __ballot_sync(~0u, before > tile);
    if (here == 0) {
      tile -= __shfl_sync(~0u, before, 31);
      continue;
    }
    const int owner = __ffs(static_cast<int>(here)) - 1;
    int within = tile - (before - sum), group = g, start = 0, left = 0;  // right in the owner's lane
    bool found = false;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (!found && within < tiles[i]) {
        found = true;
        group = g + i;
        start = at[i] + within * size;
        left = at[i + 1] - start;
      }
      within -= tiles[i];
    }
    return {__shfl_sync(~0u, group, owner), __shfl_sync(~0u, start, owner),
            min(size, __shfl_sync(~0u, left, owner))};
  }
  return {};
}

/// At least as many tiles of `size` rows as a product has.
inline int most_row_tiles(const Linear& linear, int size) {
  if (linear.groups.offsets == nullptr) return (linear.rows + size - 1) / size;
  const int partial = linear.rows < linear.groups.count ? linear.rows : linear.groups.count;
  return partial + (linear.rows - partial) / size;
}

}  // namespace troupe::kernels::cuda
