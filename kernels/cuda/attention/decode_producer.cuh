#pragma once
// The producer warp of a decode attention block: copies KV pages and queries into the ring of stages, by the
// copy engine or, in code for GPUs without one, by cp.async of all lanes.
#include "kernels/cuda/attention/decode_shared.cuh"
#include "kernels/cuda/launch.cuh"

namespace troupe::kernels::cuda::decode {

// Arrivals on a stage's `full` barrier in each phase.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr int kFullArrivals = 1;
#else
inline constexpr int kFullArrivals = 33;  // every lane's copies, and the lane that wrote the PageInfo
#endif

template <class L>
class Producer {
 public:
  __device__ Producer(typename L::Shared& shared, const DecodeArgs& p, int lane)
      : shared_(shared), p_(p), lane_(lane) {
    if (!p.settled || kFullArrivals > 1) wait_for_previous();  // q has to come before its stage's arrivals
  }

  __device__ void operator()(const DecodePart& part, const Shares& shares) {
    for (int base = part.first_page; base < part.end_page; base += 32) {
      const BlockId mine = base + lane_ < part.end_page ? __ldcg(part.blocks + base + lane_) : 0;
      const int pages = min(32, part.end_page - base);
      for (int i = 0; i < pages; ++i) copy_page(part, shares, base + i, __shfl_sync(~0u, mine, i));
    }
  }

  /// Block `rank` of a cluster merges column `rank` of each 8 of the item: its barrier expects the parts of
  /// all blocks.
  __device__ void expect_cluster_parts(const ClusterItem& item, int rank) {
    if constexpr (L::kFew) {
      const int columns = (item.tokens * p_.group - rank + kMaxGroup - 1) / kMaxGroup;
      if (item.parts() > 1 && columns > 0 && lane_ == 0)
        ptx::mbarrier_arrive_expect(&shared_.gathered, unsigned(item.parts() * columns) * L::kGatheredBytes);
    } else if (item.parts() > 1 && rank < p_.group && lane_ == 0) {
      ptx::mbarrier_arrive_expect(&shared_.gathered, unsigned(item.parts()) * L::kGatheredBytes);
    }
  }
  __device__ void finish(const ClusterItem& item) {
    wait_for_previous();
    ptx::mbarrier_wait(&shared_.empty[stage_], parity_ ^ 1);
    if (lane_ == 0) {
      shared_.info[stage_] = {.tokens = 0, .row = item.row, .kv_head = item.kv_head, .parts = item.pages};
      if constexpr (L::kFew) shared_.few[stage_] = {.tokens = item.tokens};
      ptx::mbarrier_arrive(&shared_.full[stage_]);
    }
    if constexpr (kFullArrivals > 1) ptx::mbarrier_arrive_after_copies(&shared_.full[stage_]);
  }

 private:
  /// Also copies the q of pages that were copied before the wait.
  __device__ void wait_for_previous() {
    if (waited_) return;
    troupe::cuda::wait_for_previous();
    waited_ = true;
    for (int slot = 0; slot < L::kQuerySlots; ++slot) {
      const int row = __shfl_sync(~0u, row_, slot), kv_head = __shfl_sync(~0u, kv_head_, slot);
      if constexpr (L::kFew) {
        const int stage = __shfl_sync(~0u, q_stage_, slot), tokens = __shfl_sync(~0u, tokens_, slot);
        if (row >= 0) copy_q(slot, stage, row, kv_head, tokens);
      } else if (row >= 0) {
        copy_q(slot, row, kv_head);
      }
    }
  }
  /// `bytes` contiguous bytes, a multiple of 16, by the whole warp with cp.async.
  __device__ void copy_by_lanes(std::byte* to, const std::byte* from, unsigned bytes) const {
    const ptx::SharedAddress at = ptx::shared_address(to);
#pragma unroll 8
    for (unsigned i = unsigned(lane_) * 16; i < bytes; i += 512) ptx::copy_async_16(at + i, from + i);
  }
  /// The first `columns` rows of a slot of q, of the heads of a KV head token by token, with cp.async.
  __device__ void copy_q_by_lanes(std::byte* to, int row, int kv_head, int columns) const {
    constexpr int kChunks = int(kRowBytes / 16);
    for (int i = lane_; i < columns * kChunks; i += 32) {
      const int column = i / kChunks, token = column / p_.group;
      const int head = kv_head * p_.group + column - token * p_.group;
      const auto* q = static_cast<const std::byte*>(p_.q) + std::size_t(row + token) * p_.row_elements * 2 +
                      std::size_t(head) * kRowBytes;
      ptx::copy_async_16(to + column * L::kQStride + i % kChunks * 16, q + i % kChunks * 16);
    }
  }

  /// The q of an item of several tokens.
  __device__ void copy_q(int slot, int stage, int row, int kv_head, int tokens) {
    if constexpr (kFullArrivals > 1) {
      copy_q_by_lanes(shared_.q[slot], row, kv_head, tokens * p_.group);
    } else {
      for (int column = lane_; column < tokens * p_.group; column += 32) {
        const int token = column / p_.group, head = kv_head * p_.group + column - token * p_.group;
        const auto* q = static_cast<const std::byte*>(p_.q) + std::size_t(row + token) * p_.row_elements * 2 +
                        std::size_t(head) * kRowBytes;
        ptx::bulk_copy(&shared_.q[slot][column * L::kQStride], q, kRowBytes, &shared_.full[stage]);
      }
    }
  }
  __device__ void copy_q(int stage, int row, int kv_head) {
    if constexpr (kFullArrivals > 1) {
      copy_q_by_lanes(shared_.q[stage], row, kv_head, p_.group);
    } else {
      const int head = lane_ - 16;
      if (head < 0 || head >= p_.group) return;
      const auto* q = static_cast<const std::byte*>(p_.q) + std::size_t(row) * p_.row_elements * 2 +
                      std::size_t(kv_head * p_.group + head) * kRowBytes;
      ptx::bulk_copy(&shared_.q[stage][head * L::kQStride], q, kRowBytes, &shared_.full[stage]);
    }
  }

  __device__ void copy_page(const DecodePart& part, const Shares& shares, int page, BlockId block) {
    // Copied before the wait: pages without the batch's own tokens, while the ring has unused stages.
    const int own = L::kFew ? part.tokens : 1;
    if (pages_copied_++ == L::kStages || page >= part.settled / kBlockTokens) wait_for_previous();
    const int tokens = min(kBlockTokens, part.length - page * kBlockTokens);
    const bool first = page == part.first_page, last = page == part.end_page - 1;
    if constexpr (L::kFew) {
      if (first) take_query_slot();
    }
    Barrier* full = &shared_.full[stage_];
    ptx::mbarrier_wait(&shared_.empty[stage_], parity_ ^ 1);
    const std::byte* page_from =
        p_.kv + std::size_t(block) * p_.block_bytes + std::size_t(part.kv_head) * L::kPieceBytes;
    copy_piece(shared_.stage[stage_], page_from, tokens, full);
    if constexpr (L::kFew) {
      if (first && waited_) copy_q(query_slot_, stage_, part.row, part.kv_head, part.tokens);
      if (first && !waited_ && lane_ == query_slot_) {
        row_ = part.row;
        kv_head_ = part.kv_head;
        tokens_ = part.tokens;
        q_stage_ = stage_;
      }
    } else {
      if (first && waited_) copy_q(stage_, part.row, part.kv_head);
      if (first && !waited_ && lane_ == stage_) {
        row_ = part.row;
        kv_head_ = part.kv_head;
      }
    }
    // After the copies have been issued: the phase cannot end before its one arrival below.
    if (lane_ == 0) {
      PageInfo info{.tokens = tokens,
                    .first = first,
                    .last = last,
                    .row = part.row,
                    .kv_head = part.kv_head,
                    .slot = part.slot};
      if (last && part.slot >= 0) {
        info.first_block = int(shares.share_of(part.item));
        info.parts = int(shares.share_of(part.item + part.item_pages - 1)) - info.first_block + 1;
      }
      shared_.info[stage_] = info;
      if constexpr (L::kFew) {
        shared_.few[stage_] = {.visible = part.length - own + 1 - page * kBlockTokens,
                               .tokens = own,
                               .begin = page == 0 ? p_.first : 0,
                               .queries = query_slot_};
      }
      const unsigned kv_bytes = 2 * (unsigned(tokens) * L::kTokenBytes + L::kScaleBytes);
      if constexpr (kFullArrivals > 1)
        ptx::mbarrier_arrive(full);
      else
        ptx::mbarrier_arrive_expect(full, kv_bytes + (first ? unsigned(own * p_.group) * kRowBytes : 0));
    }
    if constexpr (kFullArrivals > 1) ptx::mbarrier_arrive_after_copies(full);
    __syncwarp();
    if (++stage_ == L::kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  /// The first `tokens` tokens of a page's K and V. By the whole warp.
  __device__ void copy_piece(typename L::Stage& stage, const std::byte* page, int tokens, Barrier* full) {
    if constexpr (kFullArrivals > 1) {
      copy_half_by_lanes(stage.k, page + p_.key_offset, tokens);
      copy_half_by_lanes(stage.v, page + p_.value_offset, tokens);
    } else {
      const std::byte* from = page + (lane_ % 2 == 0 ? p_.key_offset : p_.value_offset);
      std::byte* to = lane_ % 2 == 0 ? stage.k : stage.v;
      if (tokens == kBlockTokens) {
        if (lane_ < 2) ptx::bulk_copy(to, from, L::kPieceBytes, full);
      } else if constexpr (L::kCodes) {  // a partial page: the valid rows, and all scales
        if (lane_ < 2) ptx::bulk_copy(to, from, unsigned(tokens) * L::kTokenBytes, full);
        if (lane_ / 2 == 1)
          ptx::bulk_copy(to + L::kScalesOffset, from + L::kScalesOffset, L::kScaleBytes, full);
      } else if (lane_ < 2 * (L::kHeadDim / 64)) {  // a partial page: the valid rows of each half of head_dim
        const int half = lane_ / 2 * (kBlockTokens * 128);
        ptx::bulk_copy(to + half, from + half, unsigned(tokens) * 128, full);
      }
    }
  }
  /// The first `tokens` tokens of K or V.
  __device__ void copy_half_by_lanes(std::byte* to, const std::byte* from, int tokens) const {
    if (tokens == kBlockTokens) {
      copy_by_lanes(to, from, L::kPieceBytes);
    } else if constexpr (L::kCodes) {
      copy_by_lanes(to, from, unsigned(tokens) * L::kTokenBytes);
      copy_by_lanes(to + L::kScalesOffset, from + L::kScalesOffset, L::kScaleBytes);
    } else {
      for (int half = 0; half < L::kHeadDim / 64; ++half) {
        copy_by_lanes(to + half * (kBlockTokens * 128), from + half * (kBlockTokens * 128),
                      unsigned(tokens) * 128);
      }
    }
  }

  /// The slot for the q of the part that begins, once the consumers are done with it.
  __device__ void take_query_slot() {
    if (parts_ >= L::kQuerySlots) wait_for_previous();  // what its consumers wait for is copied then
    query_slot_ = parts_ % L::kQuerySlots;
    ptx::mbarrier_wait(&shared_.queries_empty[query_slot_], (parts_ / L::kQuerySlots & 1) ^ 1);
    ++parts_;
  }

  static constexpr unsigned kRowBytes = L::kHeadDim * 2;  // of a head's q
  typename L::Shared& shared_;
  const DecodeArgs& p_;
  int lane_;
  int stage_ = 0;
  unsigned parity_ = 0;
  int pages_copied_ = 0;
  bool waited_ = false;
  // Lane s: the q that slot s still needs after the wait, and for FewLayout its stage; row -1: none.
  int row_ = -1, kv_head_ = 0;
  int tokens_ = 0, q_stage_ = 0;
  int parts_ = 0, query_slot_ = 0;
};

}  // namespace troupe::kernels::cuda::decode
