#pragma once
// Which part of a batch's past a block of the decode kernel reads.
//
// The work of a step is the list of all pages (64 tokens of one KV head), ordered by sequence, then KV head,
// then position. It is cut into equal contiguous shares, one a block: every block streams the same number
// of bytes, whatever the mix of lengths. An item, all pages of one (row, KV head), that a border cuts has
// several parts in neighbouring blocks; each leaves a partial result, and the last block to finish adds them
// up. A block has at most two parts of cut items: at its share's beginning, of an item that an earlier block
// began, and at its end, of one that it begins itself. Hence two slots a block for partial results, and one
// counter a block, for the item that begins in it.
//
// Everything is found by one warp from the sequences in device memory, since a graph freezes what the host
// knew. All functions here are called by a whole warp and give the same answer to its lanes.
#include <cstdint>

#include "kernels/batch.h"

namespace troupe::kernels::cuda {

/// One block's part of one item.
struct DecodePart {
  const BlockId* blocks = nullptr;
  int length = 0;      ///< tokens of the whole past, the row's own included
  int first_page = 0;  ///< of this part
  int end_page = 0;
  int row = 0;
  int kv_head = 0;
  int slot = -1;        ///< where the partial result goes; -1: the part is the item
  int first_block = 0;  ///< block in which the item begins
  int parts = 1;
};

/// 32 sequences, one a lane.
class SequenceWindow {
 public:
  __device__ SequenceWindow(const Sequence* sequences, int count, int lane)
      : sequences_(sequences), count_(count), lane_(lane) {}

  /// Loads the window that holds sequence s, unless it is there.
  __device__ void move_to(int s) {
    const int base = s / 32 * 32;
    if (base == base_) return;
    base_ = base;
    mine_ = base + lane_ < count_ ? sequences_[base + lane_] : Sequence{};
  }
  __device__ const Sequence& mine() const { return mine_; }
  __device__ Sequence get(int s) const {
    const auto blocks = reinterpret_cast<unsigned long long>(mine_.blocks);
    return {reinterpret_cast<const BlockId*>(__shfl_sync(~0u, blocks, s % 32)),
            __shfl_sync(~0u, mine_.position, s % 32), __shfl_sync(~0u, mine_.tokens, s % 32),
            __shfl_sync(~0u, mine_.row, s % 32)};
  }

 private:
  const Sequence* sequences_;
  int count_, lane_;
  int base_ = -1;
  Sequence mine_{};
};

/// Pages of a sequence that is decoded, 0 of any other.
__device__ __forceinline__ int decode_pages(int position, int tokens) {
  return tokens == 1 ? position / kBlockTokens + 1 : 0;
}

/// The list of pages cut into shares that differ by one page at most, the larger ones first.
struct Shares {
  unsigned count, pages, larger;  // the first `larger` have pages + 1

  __device__ Shares(unsigned total, unsigned least, unsigned most) {
    count = min(most, least > 1 ? max(total / least, min(total, 1u)) : total);
    pages = count == 0 ? 0 : total / count;
    larger = total - pages * count;
  }
  __device__ unsigned begin(unsigned share) const { return share * pages + min(share, larger); }
  /// The share that has the page.
  __device__ unsigned of(unsigned page) const {
    const unsigned border = larger * (pages + 1);
    return page < border ? page / (pages + 1) : larger + (page - border) / pages;
  }
};

/// Calls take(part) for each part of block `block`'s share, in order. Shares are no smaller than
/// `least_pages`, so that few pages do not end up as many partial results.
template <class Take>
__device__ void for_each_share_part(const Sequence* sequences, int count, int kv_heads, int least_pages,
                                    unsigned block, unsigned grid, int lane, Take&& take) {
  unsigned mine = 0;
#pragma unroll 8
  for (int s = lane; s < count; s += 32) {
    mine += unsigned(decode_pages(sequences[s].position, sequences[s].tokens));
  }
  const Shares shares(__reduce_add_sync(~0u, mine) * unsigned(kv_heads), unsigned(least_pages), grid);
  if (block >= shares.count) return;
  const unsigned begin = shares.begin(block), end = shares.begin(block + 1);

  // The sequence in which the share begins: pages of the sequences before it <= begin / kv_heads.
  SequenceWindow window(sequences, count, lane);
  const unsigned target = begin / unsigned(kv_heads);
  unsigned before = 0;
  int s = 0;
  for (int base = 0;; base += 32) {
    window.move_to(base);
    const auto pages = unsigned(decode_pages(window.mine().position, window.mine().tokens));
    const unsigned sum = __reduce_add_sync(~0u, pages);
    if (target >= before + sum) {
      before += sum;
      continue;
    }
    unsigned upto = pages;
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(~0u, upto, unsigned(step));
      if (lane >= step) upto += other;
    }
    const int found = __ffs(int(__ballot_sync(~0u, target < before + upto))) - 1;
    s = base + found;
    before += __shfl_sync(~0u, upto - pages, found);
    break;
  }

  Sequence sequence = window.get(s);
  int pages = decode_pages(sequence.position, sequence.tokens);
  const unsigned offset = begin - before * unsigned(kv_heads);
  int head = int(offset / unsigned(pages)), page = int(offset % unsigned(pages));
  for (unsigned at = begin;;) {
    DecodePart part{.blocks = sequence.blocks,
                    .length = sequence.position + 1,
                    .first_page = page,
                    .end_page = end - at < unsigned(pages - page) ? page + int(end - at) : pages,
                    .row = sequence.row,
                    .kv_head = head};
    if (page > 0 || part.end_page < pages) {
      const unsigned item = at - unsigned(page);
      part.first_block = int(page == 0 ? block : shares.of(item));
      const auto last_block = int(part.end_page == pages ? block : shares.of(item + unsigned(pages) - 1));
      part.parts = last_block - part.first_block + 1;
      part.slot = int(2 * block) + (page == 0 ? 1 : 0);
    }
    take(part);
    at += unsigned(part.end_page - page);
    if (at >= end) return;
    page = 0;
    if (++head == kv_heads) {
      head = 0;
      do {
        window.move_to(++s);
        sequence = window.get(s);
        pages = decode_pages(sequence.position, sequence.tokens);
      } while (pages == 0);
    }
  }
}

/// Slot of part i of an item that begins in block `first_block`.
__device__ __forceinline__ int part_slot(int first_block, int i) {
  return 2 * (first_block + i) + (i == 0 ? 1 : 0);
}

/// Calls take(part) for every grid-th item of all rows of all sequences, none of them cut.
template <class Take>
__device__ void for_each_whole_row(const Sequence* sequences, int count, int rows, int kv_heads,
                                   unsigned block, unsigned grid, int lane, Take&& take) {
  SequenceWindow window(sequences, count, lane);
  int base = 0;
  for (auto item = std::int64_t(block); item < std::int64_t(rows) * kv_heads; item += grid) {
    const int row = int(item / kv_heads);
    unsigned found = 0;
    for (; base < count; base += 32) {
      window.move_to(base);
      const Sequence& s = window.mine();
      found = __ballot_sync(~0u, s.row <= row && row < s.row + s.tokens);
      if (found != 0) break;
    }
    if (found == 0) return;  // padding is last
    const Sequence sequence = window.get(__ffs(int(found)) - 1);
    const int length = sequence.position + row - sequence.row + 1;
    take(DecodePart{.blocks = sequence.blocks,
                    .length = length,
                    .first_page = 0,
                    .end_page = (length + kBlockTokens - 1) / kBlockTokens,
                    .row = row,
                    .kv_head = int(item % kv_heads)});
  }
}

}  // namespace troupe::kernels::cuda
