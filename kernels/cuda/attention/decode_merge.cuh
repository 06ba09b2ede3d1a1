#pragma once
// How the results of a decode attention item come together: over the warps of a team, the blocks of a
// cluster, or all blocks that have a part of the item. decode_block.cuh describes the algorithm.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/decode_shared.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::decode {

/// A consumer thread's place, and its share of the merges.
template <class Element, class L>
class Merger {
 public:
  static constexpr int kHeadDim = L::kHeadDim;
  static constexpr int kTiles = L::kTiles;
  /// In a merge each warp has whole columns, and each lane this many dimensions of a column.
  using Vector = Floats<kHeadDim / 32>;
  static constexpr int kHeadsPerWarp = kMaxGroup / kConsumers;

  __device__ Merger(typename L::Shared& shared, const DecodeArgs& p, int thread)
      : shared_(shared),
        p_(p),
        thread_(thread),
        warp_(L::kTeams == 1 ? thread / 32 : thread / 32 % kConsumers),
        lane_(thread % 32),
        tile_(L::kTeams == 1 ? 0 : thread / (32 * kConsumers) * kTiles) {}

 protected:
  /// The columns of this warp's tile that an item has, at most kMaxGroup count.
  __device__ int columns_from(int tile) const {
    return L::kFew ? columns_ - (tile_ + tile) * kMaxGroup : p_.group;
  }
  __device__ void sync_team() const {
    if constexpr (L::kTeams == 1)
      ptx::barrier_sync<1, 32 * kConsumers>();
    else
      ptx::barrier_sync(2 + tile_ / kTiles, 32 * kConsumers);
  }
  __device__ void sync_consumers() const { ptx::barrier_sync<1, L::kConsumerThreads>(); }
  /// Scratch memory of the team's merge: one team's is the stage, once all warps have read it.
  __device__ float* merging(int stage) const {
    if constexpr (L::kTeams == 1)
      return reinterpret_cast<float*>(&shared_.stage[stage]);
    else
      return reinterpret_cast<float*>(shared_.merged[tile_ / kTiles]);
  }

  /// The last block to finish merges the parts of the item, in token order.
  __device__ void merge_if_last(const PageInfo& info) {
    sync_consumers();
    if (thread_ == 0) {
      std::uint32_t* counter = p_.counters + info.first_block;
      // Orders what the block wrote before its last barrier before what it reads after the next.
      shared_.arrived = int(ptx::atomic_increment_acq_rel(counter)) + 1;
      if (shared_.arrived == info.parts) *counter = 0;
    }
    sync_consumers();
    if (shared_.arrived != info.parts) return;
#pragma unroll 1
    for (int t = 0; t < kTiles; ++t) {
      if (L::kFew && columns_from(t) <= 0) break;
      merge_tile(t, info);
    }
  }

  __device__ void merge_tile(int t, const PageInfo& info) {
    // Eight parts at a time: lane l has the maximum and sum of part l % 8 of the warp's head l / 8 % 2. This
    // code runs once, uncached: fewer instructions matter more than more loads in flight.
    constexpr int kBatch = 8;
    const int mine = warp_ + lane_ / kBatch % kHeadsPerWarp * kConsumers;
    Vector o[kHeadsPerWarp] = {};
    float maximum = -INFINITY, sum = 0;
#pragma unroll 1
    for (int base = 0; base < info.parts; base += kBatch) {
      // Part 0 is in the slot for parts that begin an item, part i in slot first_block + i.
      const float* first_part = slot(info.first_block + int(gridDim.x));
      const float* parts = slot(info.first_block + base);
      float2 stats = make_float2(-INFINITY, 0);
      if (base + lane_ % kBatch < info.parts && mine < columns_from(t)) {
        const float* from = base + lane_ % kBatch == 0
                                ? first_part
                                : parts + lane_ % kBatch * partial_floats(kHeadDim, L::kColumns);
        stats = __ldcg(reinterpret_cast<const float2*>(from + L::kColumns * kHeadDim) + column_of(t, mine));
      }
      Vector loaded[kHeadsPerWarp][kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const float* from = base + j == 0 ? first_part : parts + j * partial_floats(kHeadDim, L::kColumns);
#pragma unroll
        for (int i = 0; i < kHeadsPerWarp; ++i) {
          const int h = warp_ + i * kConsumers;
          loaded[i][j] = {};
          if (base + j < info.parts && h < columns_from(t))
            loaded[i][j].load(from + column_of(t, h) * kHeadDim, lane_);
        }
      }
      float new_maximum = stats.x;
#pragma unroll
      for (int step = 1; step < kBatch; step *= 2)
        new_maximum = fmaxf(new_maximum, __shfl_xor_sync(~0u, new_maximum, step));
      new_maximum = fmaxf(new_maximum, maximum);
      const float shrink = ptx::exp2_approx(maximum - new_maximum);
      const float weight = ptx::exp2_approx(stats.x - new_maximum);
      maximum = new_maximum;
      sum = sum * shrink + weight * stats.y;
#pragma unroll
      for (int i = 0; i < kHeadsPerWarp; ++i) {
        o[i].scale(__shfl_sync(~0u, shrink, i * kBatch));
#pragma unroll
        for (int j = 0; j < kBatch; ++j)
          o[i].add_scaled(__shfl_sync(~0u, weight, i * kBatch + j), loaded[i][j]);
      }
    }
#pragma unroll
    for (int step = 1; step < kBatch; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
    for (int i = 0; i < kHeadsPerWarp; ++i) {
      const int h = warp_ + i * kConsumers;
      const float all = __shfl_sync(~0u, sum, i * kBatch);
      if (h < columns_from(t)) store(info.row, info.kv_head, column_of(t, h), lane_, o[i], 1 / all);
    }
  }

  /// Column h of this warp's tile, among the item's.
  __device__ int column_of(int tile, int h) const { return L::kFew ? (tile_ + tile) * kMaxGroup + h : h; }
  __device__ float* slot(int i) const {
    return p_.partials + std::size_t(i) * partial_floats(kHeadDim, L::kColumns);
  }
  __device__ float2 (&team_stats() const)[kConsumers][kMaxGroup] {
    if constexpr (L::kFew)
      return shared_.stats[tile_ / kTiles];
    else
      return shared_.stats;
  }
  /// A column's results in a cluster: O of the blocks, and their (maximum, sum).
  __device__ float (*gathered_o(int tile) const)[kHeadDim] {
    if constexpr (L::kFew)
      return shared_.gathered_o[tile_ + tile];
    else
      return shared_.gathered_o;
  }
  __device__ float2* gathered_stats(int tile) const {
    if constexpr (L::kFew)
      return shared_.gathered_stats[tile_ + tile];
    else
      return shared_.gathered_stats;
  }

  /// Sends this block's part of a column to the block of the cluster that merges it.
  __device__ void send_to_peer(int tile, int h, const Vector& o, float2 stats) {
    const int rank = int(blockIdx.x % kClusterBlocks);
    const auto on_peer = [&](const void* own) { return ptx::peer_address(ptx::shared_address(own), h); };
    const ptx::SharedAddress barrier = on_peer(&shared_.gathered);
    ptx::store_async(on_peer(&gathered_o(tile)[rank][lane_ * Vector::kSize]), o.v, barrier);
    if (lane_ == 0) ptx::store_async(on_peer(&gathered_stats(tile)[rank]), stats, barrier);
  }

  /// Waits for all parts of this block's columns of the item, and merges and stores them.
  __device__ void merge_cluster_parts(const ClusterItem& item) {
    const int h = int(blockIdx.x % kClusterBlocks);
    if (L::kFew) columns_ = item.tokens * p_.group;
    if (!p_.clusters || item.parts() <= 1 || h >= columns_from(0)) return;
    ptx::mbarrier_wait(&shared_.gathered, 0);
    const int pair = L::kTeams == 1 ? thread_ : thread_ % (32 * kConsumers);
    if (pair * 2 >= kHeadDim) return;
#pragma unroll 1
    for (int t = 0; t < kTiles; ++t) {
      if (L::kFew && h >= columns_from(t)) break;
      float largest = -INFINITY;
#pragma unroll
      for (int r = 0; r < kClusterBlocks; ++r) {
        if (item.has_pages(r)) largest = fmaxf(largest, gathered_stats(t)[r].x);
      }
      Floats<2> o{};
      float sum = 0;
#pragma unroll
      for (int r = 0; r < kClusterBlocks; ++r) {
        if (!item.has_pages(r)) continue;
        const float2 stats = gathered_stats(t)[r];
        const float weight = ptx::exp2_approx(stats.x - largest);
        sum += weight * stats.y;
        o.add_scaled(weight, *reinterpret_cast<const Floats<2>*>(&gathered_o(t)[r][pair * 2]));
      }
      store(item.row, item.kv_head, column_of(t, h), pair, o, 1 / sum);
    }
  }

  template <int kSize>
  __device__ void store(int row, int kv_head, int column, int piece, const Floats<kSize>& o, float factor) {
    int head = column;
    if constexpr (L::kFew) {
      const int token = column / p_.group;
      row += token;
      head -= token * p_.group;
    }
    auto* out = static_cast<Element*>(p_.out) + std::size_t(row) * p_.row_elements +
                (kv_head * p_.group + head) * kHeadDim + piece * kSize;
#pragma unroll
    for (int i = 0; i < kSize; i += 2) {
      *reinterpret_cast<std::uint32_t*>(out + i) = pack_two<Element>(o.v[i] * factor, o.v[i + 1] * factor);
    }
  }

  typename L::Shared& shared_;
  const DecodeArgs& p_;
  int thread_, warp_, lane_;
  int tile_;         // the first of this team's
  int columns_ = 0;  // of the item, if it has several tokens
};

}  // namespace troupe::kernels::cuda::decode
