#pragma once
// The producer warps of prefill attention: one takes units, one copies keys and values, two copy queries.
#include "kernels/cuda/attention/flash_plan.cuh"

namespace troupe::kernels::cuda {

/// A block takes its next unit this many stages before the end of the current one: as late as possible, so
/// that the blocks finish at about the same time.
inline constexpr int kFlashRequestLead = 3;

/// Takes units of work, by one warp. A block's first unit has the block's index; then each block takes the
/// next one from a counter until none is left. The last block to take resets the counter to zero.
template <class S>
__device__ void take_units(const FlashArguments& a, FlashShared<S>& shared) {
  const int lane = int(threadIdx.x % 32), units = shared.units, blocks = int(gridDim.x);
  bool working = false;
  for (int k = 0;; ++k) {
    const int slot = k % kFlashUnitSlots;
    ptx::mbarrier_wait(&shared.unit_free[slot], (k / kFlashUnitSlots & 1) ^ 1);
    if (working) ptx::mbarrier_wait(&shared.unit_requested, (k - 1) & 1);
    int unit = int(blockIdx.x);
    if (k > 0) {
      if (lane == 0) {
        const int taken = int(atomicAdd(a.counters, 1u));
        if (taken == max(units, blocks) - 1) *a.counters = 0;
        unit = blocks + taken;
      }
      unit = __shfl_sync(~0u, unit, 0);
    }
    FlashUnit u{};
    if (unit < units) {
      u = flash_unit(a, shared, unit);
      const int page = u.begin * S::kPages / 32 * 32 + lane;
      if (page * kBlockTokens < u.position + u.tokens) shared.first_blocks[slot][lane] = u.blocks[page];
    }
    if (lane == 0) shared.unit[slot] = u;
    ptx::mbarrier_arrive(&shared.unit_ready[slot]);  // each lane for what it wrote
    if (k > 0 && unit >= units) return;
    working = unit < units;
  }
}

/// Copies keys and values of the units into the ring of stages. One warp.
template <class S>
class FlashPageCopier {
 public:
  __device__ FlashPageCopier(const FlashArguments& a, FlashShared<S>& shared)
      : a_(a), shared_(shared), lane_(int(threadIdx.x % 32)) {}

  __device__ void run() {
    for (int k = 0;; ++k) {
      const int slot = k % kFlashUnitSlots;
      ptx::mbarrier_wait(&shared_.unit_ready[slot], k / kFlashUnitSlots & 1);
      const FlashUnit& u = shared_.unit[slot];
      const int begin = u.begin, end = u.end;
      if (end == 0) return;
      end_ = u.position + u.tokens;
      pages_ = (end_ + kBlockTokens - 1) / kBlockTokens;
      blocks_ = u.blocks;
      ids_from_ = begin * S::kPages / 32 * 32;
      ids_ = shared_.first_blocks[slot][lane_];
      next_ = id(ids_from_ + 32 + lane_);
      keys_ = a_.kv + a_.key_offset + std::size_t(u.kv_head) * S::kPageBytes;
      values_ = a_.kv + a_.value_offset + std::size_t(u.kv_head) * S::kPageBytes;
      ptx::mbarrier_arrive(&shared_.unit_free[slot]);  // this warp reads no more of it
      ring_base_ -= begin;
      copy_keys(begin);
      for (int j = begin; j < end; ++j) {
        if (lane_ == 0 && j == max(begin, end - kFlashRequestLead))
          ptx::mbarrier_arrive(&shared_.unit_requested);
        if (j + 1 < end) copy_keys(j + 1);
        copy_values(j);
      }
      ring_base_ += end;
    }
  }

 private:
  /// KV block of a page. Calls come in rising order of pages, or go back by at most one stage. By a whole
  /// warp.
  __device__ BlockId block_of(int page) {
    if (page >= ids_from_ + 32) {
      ids_from_ += 32;
      earlier_ = ids_;
      ids_ = next_;
      next_ = id(ids_from_ + 32 + lane_);
    }
    return __shfl_sync(~0u, page >= ids_from_ ? ids_ : earlier_, page % 32);
  }
  __device__ BlockId id(int page) const { return page < pages_ ? blocks_[page] : 0; }

  __device__ void copy_keys(int j) {
    const int at = (ring_base_ + j) % S::kStages;
    ptx::mbarrier_wait(&shared_.keys_empty[at], ((ring_base_ + j) / S::kStages & 1) ^ 1);
    const int pages = min(S::kPages, pages_ - j * S::kPages);
    if (lane_ == 0) ptx::mbarrier_arrive_expect(&shared_.keys_full[at], std::uint32_t(pages * S::kPageBytes));
#pragma unroll
    for (int p = 0; p < S::kPages; ++p) {
      if (p >= pages) break;
      copy_page(shared_.keys[at], keys_, p, j, S::kHalfBytes, &shared_.keys_full[at]);
    }
  }

  /// Memory past the sequence's end is uninitialised, a skipped token's may be anything, and 0 times NaN is
  /// NaN: those rows are filled with zeros instead of being copied.
  __device__ void copy_values(int j) {
    const int at = (ring_base_ + j) % S::kStages;
    ptx::mbarrier_wait(&shared_.values_empty[at], ((ring_base_ + j) / S::kStages & 1) ^ 1);
    const int tokens = min(S::kKeys, end_ - j * S::kKeys);
    const int skipped = S::kSkipsFirst && j == 0 ? 1 : 0;
    if (tokens < S::kKeys || skipped > 0) {
      if (skipped > 0) clear_values(at, 0);
      for (int t = tokens; t < S::kKeys; ++t) clear_values(at, t);
      ptx::fence_proxy_async();
      __syncwarp();
    }
    if (lane_ == 0) {
      ptx::mbarrier_arrive_expect(&shared_.values_full[at],
                                  std::uint32_t((tokens - skipped) * S::kHalves * 128));
    }
#pragma unroll
    for (int p = 0; p < S::kPages; ++p) {
      const int bytes = min(kBlockTokens, tokens - p * kBlockTokens) * 128;
      if (bytes <= 0) break;
      const int skipped_bytes = p == 0 ? skipped * 128 : 0;
      copy_page(shared_.values[at] + skipped_bytes, values_ + skipped_bytes, p, j, bytes - skipped_bytes,
                &shared_.values_full[at]);
    }
  }
  __device__ void clear_values(int at, int t) {
    for (int c = lane_; c < 8 * S::kHalves; c += 32) {
      const int half = (c / 8 * S::kPages + t / kBlockTokens) * S::kHalfBytes;
      *reinterpret_cast<uint4*>(shared_.values[at] + half + t % kBlockTokens * 128 + c % 8 * 16) =
          make_uint4(0, 0, 0, 0);
    }
  }

  /// Copies page p of stage j: half h goes to (h * kPages + p) * kHalfBytes, so that the rows of a stage are
  /// contiguous.
  __device__ void copy_page(std::byte* to, const std::byte* base, int p, int j, int bytes,
                            ptx::Barrier* full) {
    const std::byte* from = base + std::size_t(block_of(j * S::kPages + p)) * a_.block_bytes;
    if (lane_ != 0) return;
#pragma unroll
    for (int h = 0; h < S::kHalves; ++h) {
      ptx::bulk_copy(to + (h * S::kPages + p) * S::kHalfBytes, from + h * S::kHalfBytes, std::uint32_t(bytes),
                     full);
    }
  }

  const FlashArguments& a_;
  FlashShared<S>& shared_;
  const int lane_;
  const std::byte* keys_ = nullptr;
  const std::byte* values_ = nullptr;
  const BlockId* blocks_ = nullptr;
  int end_ = 0, pages_ = 0;
  int ids_from_ =
      0;  // ids_ is the block id of page ids_from_ + lane; earlier_ and next_: 32 pages before and after
  BlockId earlier_ = 0, ids_ = 0, next_ = 0;
  int ring_base_ = 0;  // stage j of this unit is stage ring_base_ + j of the ring
};

/// Copies the units' queries. By S::kLoaders threads; `thread` is the index among them.
template <class S>
__device__ void load_queries(const FlashArguments& a, FlashShared<S>& shared, int thread) {
  constexpr int kChunks = S::kHeadDim / 8, kRowsAtOnce = S::kLoaders / kChunks;
  for (int k = 0;; ++k) {
    const int slot = k % kFlashQuerySlots;
    ptx::mbarrier_wait(&shared.unit_ready[k % kFlashUnitSlots], k / kFlashUnitSlots & 1);
    const FlashUnit u = shared.unit[k % kFlashUnitSlots];
    if (u.end > 0) {
      ptx::mbarrier_wait(&shared.queries_empty[slot], (k / kFlashQuerySlots & 1) ^ 1);
#pragma unroll 8
      for (int i = 0; i < S::kRows / kRowsAtOnce; ++i) {
        const int row = i * kRowsAtOnce + thread / kChunks;
        const std::ptrdiff_t from = global_chunk<S>(a, u, row, thread % kChunks);
        ptx::copy_async_16_or_zero(ptx::shared_address(shared.rows[slot][row / 64]) +
                                       std::uint32_t(swizzled_chunk(row % 64, thread % kChunks)),
                                   static_cast<const typename S::T*>(a.q) + max(from, std::ptrdiff_t{0}),
                                   from >= 0);
      }
      ptx::copy_async_commit();
      ptx::copy_async_wait<0>();
      ptx::fence_proxy_async();
    }
    const bool more = u.end > 0;
    if (more) ptx::mbarrier_arrive(&shared.unit_free[k % kFlashUnitSlots]);
    ptx::mbarrier_arrive(&shared.queries_full[slot]);
    if (!more) return;
  }
}

}  // namespace troupe::kernels::cuda
