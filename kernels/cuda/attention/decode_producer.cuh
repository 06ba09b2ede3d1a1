#pragma once
// The warp of a decode attention block that brings pages and queries.
#include "kernels/cuda/attention/decode_shared.cuh"
#include "kernels/cuda/launch.cuh"

namespace troupe::kernels::cuda::decode {

template <int kHeadDim>
class Producer {
 public:
  using L = DecodeLayout<kHeadDim>;
  __device__ Producer(typename L::Shared& shared, const DecodeArgs& p, int lane)
      : shared_(shared), p_(p), lane_(lane) {
    if (!p.settled) wait_for_previous();
  }

  __device__ void operator()(const DecodePart& part, const Shares& shares) {
    for (int base = part.first_page; base < part.end_page; base += 32) {
      const BlockId mine = base + lane_ < part.end_page ? __ldcg(part.blocks + base + lane_) : 0;
      const int pages = min(32, part.end_page - base);
      for (int i = 0; i < pages; ++i) page(part, shares, base + i, __shfl_sync(~0u, mine, i));
    }
  }

  /// Every block of a cluster finishes one head of its item.
  __device__ void expect(const TeamItem& item, int rank) {
    if (item.parts() > 1 && rank < p_.group && lane_ == 0)
      troupe::cuda::arrive_expect(&shared_.gathered, unsigned(item.parts()) * L::kGatheredBytes);
  }
  __device__ void finish(const TeamItem& item) {
    wait_for_previous();
    troupe::cuda::wait(&shared_.empty[stage_], parity_ ^ 1);
    if (lane_ == 0) {
      shared_.note[stage_] = {.tokens = 0, .row = item.row, .kv_head = item.kv_head, .parts = item.pages};
      troupe::cuda::arrive(&shared_.full[stage_]);
    }
  }

 private:
  /// Then the q that earlier pages still want.
  __device__ void wait_for_previous() {
    if (waited_) return;
    troupe::cuda::wait_for_previous();
    waited_ = true;
    for (int stage = 0; stage < L::kStages; ++stage) {
      const int row = __shfl_sync(~0u, row_, stage), kv_head = __shfl_sync(~0u, kv_head_, stage);
      if (row >= 0) bring_q(stage, row, kv_head);
    }
  }
  __device__ void bring_q(int stage, int row, int kv_head) {
    const int head = lane_ - 16;
    if (head < 0 || head >= p_.group) return;
    const auto* q = static_cast<const std::byte*>(p_.q) + std::size_t(row) * p_.row_elements * 2 +
                    std::size_t(kv_head * p_.group + head) * kRowBytes;
    troupe::cuda::copy_bulk(&shared_.q[stage][head * L::kQStride], q, kRowBytes, &shared_.full[stage]);
  }

  __device__ void page(const DecodePart& part, const Shares& shares, int page, BlockId block) {
    // Before the wait: pages without the row's own token, while no stage has to come free.
    if (brought_++ == L::kStages || page >= (part.length - 1) / kBlockTokens) wait_for_previous();
    const int tokens = min(kBlockTokens, part.length - page * kBlockTokens);
    const bool first = page == part.first_page, last = page == part.end_page - 1;
    Barrier* full = &shared_.full[stage_];
    troupe::cuda::wait(&shared_.empty[stage_], parity_ ^ 1);
    const std::byte* from = p_.kv + std::size_t(block) * p_.block_bytes +
                            std::size_t(part.kv_head) * L::kPieceBytes +
                            (lane_ % 2 == 0 ? p_.key_offset : p_.value_offset);
    std::byte* to = lane_ % 2 == 0 ? shared_.stage[stage_].k : shared_.stage[stage_].v;
    if (tokens == kBlockTokens) {
      if (lane_ < 2) troupe::cuda::copy_bulk(to, from, L::kPieceBytes, full);
    } else if (lane_ < 2 * (kHeadDim / 64)) {  // of each half the rows there are
      const int half = lane_ / 2 * (kBlockTokens * 128);
      troupe::cuda::copy_bulk(to + half, from + half, unsigned(tokens) * 128, full);
    }
    if (first && waited_) bring_q(stage_, part.row, part.kv_head);
    if (first && !waited_ && lane_ == stage_) {
      row_ = part.row;
      kv_head_ = part.kv_head;
    }
    // The copies are on their way: the rest has time. The phase does not end before its one arrival.
    if (lane_ == 0) {
      PageNote note{.tokens = tokens,
                    .first = first,
                    .last = last,
                    .row = part.row,
                    .kv_head = part.kv_head,
                    .slot = part.slot};
      if (last && part.slot >= 0) {
        note.first_block = int(shares.of(part.item));
        note.parts = int(shares.of(part.item + part.item_pages - 1)) - note.first_block + 1;
      }
      shared_.note[stage_] = note;
      const unsigned rows = 2 * unsigned(tokens) + (first ? unsigned(p_.group) : 0);
      troupe::cuda::arrive_expect(full, rows * kRowBytes);
    }
    __syncwarp();
    if (++stage_ == L::kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  static constexpr unsigned kRowBytes = kHeadDim * 2;
  typename L::Shared& shared_;
  const DecodeArgs& p_;
  int lane_;
  int stage_ = 0;
  unsigned parity_ = 0;
  int brought_ = 0;  // pages
  bool waited_ = false;
  int row_ = -1, kv_head_ = 0;  // of lane s: of the q that stage s wants after the wait
};

}  // namespace troupe::kernels::cuda::decode
