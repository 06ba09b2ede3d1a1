#pragma once
// The producer warp of a decode attention block: copies KV pages and queries into the ring of stages.
#include "kernels/cuda/attention/decode_shared.cuh"
#include "kernels/cuda/launch.cuh"

namespace troupe::kernels::cuda::decode {

template <int kHeadDim, KvFormat kFormat>
class Producer {
 public:
  using L = DecodeLayout<kHeadDim, kFormat>;
  __device__ Producer(typename L::Shared& shared, const DecodeArgs& p, int lane)
      : shared_(shared), p_(p), lane_(lane) {
    if (!p.settled) wait_for_previous();
  }

  __device__ void operator()(const DecodePart& part, const Shares& shares) {
    for (int base = part.first_page; base < part.end_page; base += 32) {
      const BlockId mine = base + lane_ < part.end_page ? __ldcg(part.blocks + base + lane_) : 0;
      const int pages = min(32, part.end_page - base);
      for (int i = 0; i < pages; ++i) copy_page(part, shares, base + i, __shfl_sync(~0u, mine, i));
    }
  }

  /// Block `rank` of a cluster merges head `rank` of the item: its barrier expects the parts of all blocks.
  __device__ void expect_cluster_parts(const ClusterItem& item, int rank) {
    if (item.parts() > 1 && rank < p_.group && lane_ == 0)
      ptx::mbarrier_arrive_expect(&shared_.gathered, unsigned(item.parts()) * L::kGatheredBytes);
  }
  __device__ void finish(const ClusterItem& item) {
    wait_for_previous();
    ptx::mbarrier_wait(&shared_.empty[stage_], parity_ ^ 1);
    if (lane_ == 0) {
      shared_.info[stage_] = {.tokens = 0, .row = item.row, .kv_head = item.kv_head, .parts = item.pages};
      ptx::mbarrier_arrive(&shared_.full[stage_]);
    }
  }

 private:
  /// Also copies the q of pages that were copied before the wait.
  __device__ void wait_for_previous() {
    if (waited_) return;
    troupe::cuda::wait_for_previous();
    waited_ = true;
    for (int stage = 0; stage < L::kStages; ++stage) {
      const int row = __shfl_sync(~0u, row_, stage), kv_head = __shfl_sync(~0u, kv_head_, stage);
      if (row >= 0) copy_q(stage, row, kv_head);
    }
  }
  __device__ void copy_q(int stage, int row, int kv_head) {
    const int head = lane_ - 16;
    if (head < 0 || head >= p_.group) return;
    const auto* q = static_cast<const std::byte*>(p_.q) + std::size_t(row) * p_.row_elements * 2 +
                    std::size_t(kv_head * p_.group + head) * kRowBytes;
    ptx::bulk_copy(&shared_.q[stage][head * L::kQStride], q, kRowBytes, &shared_.full[stage]);
  }

  __device__ void copy_page(const DecodePart& part, const Shares& shares, int page, BlockId block) {
    // Copied before the wait: pages without the row's own token, while the ring has unused stages.
    if (pages_copied_++ == L::kStages || page >= (part.length - 1) / kBlockTokens) wait_for_previous();
    const int tokens = min(kBlockTokens, part.length - page * kBlockTokens);
    const bool first = page == part.first_page, last = page == part.end_page - 1;
    Barrier* full = &shared_.full[stage_];
    ptx::mbarrier_wait(&shared_.empty[stage_], parity_ ^ 1);
    const std::byte* from = p_.kv + std::size_t(block) * p_.block_bytes +
                            std::size_t(part.kv_head) * L::kPieceBytes +
                            (lane_ % 2 == 0 ? p_.key_offset : p_.value_offset);
    std::byte* to = lane_ % 2 == 0 ? shared_.stage[stage_].k : shared_.stage[stage_].v;
    if (tokens == kBlockTokens) {
      if (lane_ < 2) ptx::bulk_copy(to, from, L::kPieceBytes, full);
    } else if constexpr (L::kCodes) {  // a partial page: the valid rows, and all scales
      if (lane_ < 2) ptx::bulk_copy(to, from, unsigned(tokens) * L::kTokenBytes, full);
      if (lane_ / 2 == 1)
        ptx::bulk_copy(to + L::kScalesOffset, from + L::kScalesOffset, L::kScaleBytes, full);
    } else if (lane_ < 2 * (kHeadDim / 64)) {  // a partial page: the valid rows of each half of head_dim
      const int half = lane_ / 2 * (kBlockTokens * 128);
      ptx::bulk_copy(to + half, from + half, unsigned(tokens) * 128, full);
    }
    if (first && waited_) copy_q(stage_, part.row, part.kv_head);
    if (first && !waited_ && lane_ == stage_) {
      row_ = part.row;
      kv_head_ = part.kv_head;
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
      const unsigned kv_bytes = 2 * (unsigned(tokens) * L::kTokenBytes + L::kScaleBytes);
      ptx::mbarrier_arrive_expect(full, kv_bytes + (first ? unsigned(p_.group) * kRowBytes : 0));
    }
    __syncwarp();
    if (++stage_ == L::kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  static constexpr unsigned kRowBytes = kHeadDim * 2;  // of a head's q
  typename L::Shared& shared_;
  const DecodeArgs& p_;
  int lane_;
  int stage_ = 0;
  unsigned parity_ = 0;
  int pages_copied_ = 0;
  bool waited_ = false;
  int row_ = -1, kv_head_ = 0;  // lane s: the q that stage s still needs after the wait; row -1: none
};

}  // namespace troupe::kernels::cuda::decode
