#pragma once
// How a product's sums are finished and stored, four outputs of one row at a time; and the rows and the group
// of a tile of a grouped product. Shared by the generic way, streams and strips.
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp_scan.cuh"

namespace troupe::kernels::cuda {

/// A Linear's ending, as kernels take it.
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
  std::size_t block_bytes = 0;  ///< kv.block_bytes()
  int layer = 0;
  int keys_at = 0;    ///< heads * head_dim
  int values_at = 0;  ///< keys_at + kv_heads * head_dim
  int end = 0;        ///< values_at + kv_heads * head_dim
  bool kv_swizzled = false;
  // LinearBias, in kernels that end in BiasedFour
  const float* bias = nullptr;
  BiasEnding bias_ending = BiasEnding::store;
};

inline EndingArgs ending_of(const Linear& linear) {
  const int outputs = padded(linear.weight.outputs);
  EndingArgs e{.ending = linear.ending,
               .outputs = outputs,
               .out_stride = linear.ending == Ending::swiglu ? padded(linear.weight.outputs / 2) : outputs,
               .out = linear.out,
               .scale = linear.scale,
               .bias = linear.bias,
               .bias_ending = linear.bias_ending};
  if (linear.ending == Ending::qkv) {
    e.q = linear.q;
    e.rope = linear.rope;
    e.slots = linear.slots;
    e.kv = linear.kv;
    e.block_bytes = linear.kv.block_bytes();
    e.layer = linear.layer;
    e.keys_at = linear.heads * linear.kv.head_dim;
    e.values_at = e.keys_at + linear.kv.kv_heads * linear.kv.head_dim;
    e.end = e.values_at + linear.kv.kv_heads * linear.kv.head_dim;
    e.kv_swizzled = swizzled(linear.kv.dtype, linear.kv.head_dim);
  }
  return e;
}

__device__ __forceinline__ float4 scaled(float4 y, float by) {
  return make_float4(y.x * by, y.y * by, y.z * by, y.w * by);
}
__device__ __forceinline__ float4 scaled(float4 y, float4 by) {
  return make_float4(y.x * by.x, y.y * by.y, y.z * by.z, y.w * by.w);
}

/// x / (1 + e^-x).
template <class T>
__device__ __forceinline__ float silu(float x) {
  if constexpr (sizeof(T) == 4) return x / (1.0f + expf(-x));
  return __fdividef(x, 1.0f + __expf(-x));  // a true division is a call, of code that lies in cold memory
}

/// Finishes outputs o … o + 3 of row p (o is a multiple of 4 below e.outputs; of gate|up it is a gate's;
/// head_dim is a multiple of 4). Construct it before wait_for_previous(), which computes the addresses; call
/// read() after the wait, and finish() with the sums.
template <class T>
class Four {
 public:
  __device__ __forceinline__ Four(const EndingArgs& e, int p, int o) : e_(e), o_(o) {
    const auto row = static_cast<std::size_t>(p);
    if (e.ending == Ending::qkv) {
      place(row);
    } else {
      const int column = e.ending == Ending::swiglu ? o / 16 * 8 + o % 8 : o;
      const bool wide = e.ending == Ending::add || e.ending == Ending::store_f32;
      to_ = static_cast<char*>(e.out) +
            (row * static_cast<std::size_t>(e.out_stride) + static_cast<std::size_t>(column)) *
                (wide ? 4 : sizeof(T));
      from_ = e.ending == Ending::add ? reinterpret_cast<const float*>(to_) : e.scale + row;
    }
    ptx::materialize(to_);
    ptx::materialize(from_);
  }

  __device__ __forceinline__ void read() {
    if (e_.ending == Ending::add) read_ = *reinterpret_cast<const float4*>(from_);
    if (e_.ending == Ending::store_scaled) read_.x = *from_;
    if (e_.ending == Ending::qkv) {
      if (o_ < e_.values_at) read_ = *reinterpret_cast<const float4*>(from_);
      if (o_ >= e_.keys_at && e_.slots != nullptr) slot_ = *slot_at_;
    }
  }

  /// What finish() stores for Ending::add.
  __device__ __forceinline__ float4 added(float4 y) const {
    return make_float4(read_.x + y.x, read_.y + y.y, read_.z + y.z, read_.w + y.w);
  }

  // No switch: its jump table would be a read from memory that is in no cache.
  __device__ __forceinline__ void finish(float4 y, float4 up) {
    if (e_.ending == Ending::add) {
      *reinterpret_cast<float4*>(to_) = added(y);
    } else if (e_.ending == Ending::swiglu) {
      store_four(reinterpret_cast<T*>(to_), silu<T>(y.x) * up.x, silu<T>(y.y) * up.y, silu<T>(y.z) * up.z,
                 silu<T>(y.w) * up.w);
    } else if (e_.ending == Ending::store_f32) {
      *reinterpret_cast<float4*>(to_) = y;
    } else if (e_.ending == Ending::store_scaled) {
      store_four(reinterpret_cast<T*>(to_), read_.x * y.x, read_.x * y.y, read_.x * y.z, read_.x * y.w);
    } else if (o_ < e_.end) {
      finish_head(y);
    }
  }

 private:
  __device__ __forceinline__ void place(std::size_t row) {
    const int head_dim = e_.kv.head_dim, keys_at = e_.keys_at;
    const bool value = o_ >= e_.values_at, key = !value && o_ >= keys_at;
    const int at = value ? o_ - e_.values_at : key ? o_ - keys_at : o_;
    const int head = at / head_dim;
    const int dimension = at - head * head_dim;
    column_ = KvColumn(e_.kv_swizzled, head_dim, dimension);
    from_ = e_.rope + row * static_cast<std::size_t>(head_dim) + dimension;
    slot_at_ = e_.slots + row;
    if (e_.slots == nullptr) slot_ = row_slot(static_cast<int>(row));
    to_ = value ? static_cast<char*>(e_.kv.data) + e_.kv.value_offset(0, e_.layer, head)
          : key ? static_cast<char*>(e_.kv.data) + e_.kv.key_offset(0, e_.layer, head)
                : static_cast<char*>(e_.q) +
                      (row * static_cast<std::size_t>(padded(keys_at)) + static_cast<std::size_t>(o_)) *
                          sizeof(T);
    ptx::materialize(slot_at_);
  }

  __device__ __forceinline__ void finish_head(float4 y) {
    if (o_ < e_.values_at) {
      y = make_float4(y.x * read_.x - y.y * read_.y, y.y * read_.x + y.x * read_.y,
                      y.z * read_.z - y.w * read_.w, y.w * read_.z + y.z * read_.w);
    }
    T* to = reinterpret_cast<T*>(to_);
    if (o_ >= e_.keys_at) {
      if (slot_.block == kPaddingBlock) return;
      to = reinterpret_cast<T*>(to_ + static_cast<std::size_t>(slot_.block) * e_.block_bytes) +
           column_.at(slot_.offset);
    } else if (o_ + 4 == e_.keys_at) {
      for (int i = e_.keys_at; i < padded(e_.keys_at); ++i) to[i - o_] = from_float<T>(0.0f);
    }
    store_four(to, y.x, y.y, y.z, y.w);
  }

  const EndingArgs& e_;
  int o_;
  KvColumn column_;              // of K and V
  char* to_ = nullptr;           // of K and V: the head's piece in block 0
  const float* from_ = nullptr;  // what read() reads
  const KvSlot* slot_at_ = nullptr;
  float4 read_{};  // old values of out, the angles, or the scale
  KvSlot slot_{};
};

/// Finishes outputs o and o + 1 (o is even) of q, k and v of row p, for any even head_dim.
template <class T>
__device__ __forceinline__ void end_pair(const EndingArgs& e, int p, int o, float a, float b) {
  if (o >= e.end) return;
  const int head_dim = e.kv.head_dim;
  const bool value = o >= e.values_at, key = !value && o >= e.keys_at;
  const int at = value ? o - e.values_at : key ? o - e.keys_at : o;
  const int head = at / head_dim, d = at % head_dim;
  if (!value) {
    const float* angle = e.rope + static_cast<std::size_t>(p) * static_cast<std::size_t>(head_dim) + d;
    const float even = a * angle[0] - b * angle[1];
    b = b * angle[0] + a * angle[1];
    a = even;
  }
  if (!value && !key) {
    const int width = padded(e.keys_at);
    T* row = static_cast<T*>(e.q) + static_cast<std::size_t>(p) * static_cast<std::size_t>(width);
    row[o] = from_float<T>(a);
    row[o + 1] = from_float<T>(b);
    if (o + 2 == e.keys_at) {
      for (int i = e.keys_at; i < width; ++i) row[i] = from_float<T>(0.0f);
    }
    return;
  }
  const KvSlot slot = e.slots != nullptr ? e.slots[p] : row_slot(p);
  if (slot.block == kPaddingBlock) return;
  const std::size_t offset =
      value ? e.kv.value_offset(slot.block, e.layer, head) : e.kv.key_offset(slot.block, e.layer, head);
  T* piece = reinterpret_cast<T*>(static_cast<char*>(e.kv.data) + offset);
  piece[kv_index(e.kv_swizzled, head_dim, slot.offset, d)] = from_float<T>(a);
  piece[kv_index(e.kv_swizzled, head_dim, slot.offset, d + 1)] = from_float<T>(b);
}

/// Rows of one tile: those of group `group` from `first`, `count` of them (0: nothing to do).
struct RowTile {
  int group = 0;
  int first = 0;
  int count = 0;
};

/// The tile-th of all groups' tiles of `size` rows, group after group. Called by whole warps. kPastL1: reads
/// the offsets past the L1 cache, as settled ones (kernels/cuda/launch.cuh) have to be read.
template <bool kPastL1 = false>
__device__ __forceinline__ RowTile find_rows(const std::int32_t* offsets, int groups, int rows, int size,
                                             int tile) {
  if (offsets == nullptr) return {0, tile * size, min(size, rows - tile * size)};
  constexpr int kOfLane = 4;  // neighbouring groups
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int base = 0; base < groups; base += 32 * kOfLane) {
    const int g = base + lane * kOfLane;
    int at[kOfLane + 1], tiles[kOfLane], sum = 0;
#pragma unroll
    for (int i = 0; i <= kOfLane; ++i) {
      const std::int32_t* from = offsets + min(g + i, groups);
      at[i] = kPastL1 ? __ldcg(from) : *from;
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      tiles[i] = (at[i + 1] - at[i] + size - 1) / size;
      sum += tiles[i];
    }
    const int before = inclusive_sum(sum, lane);  // tiles of the lanes up to this one
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

}  // namespace troupe::kernels::cuda
