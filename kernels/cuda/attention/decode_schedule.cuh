#pragma once
// Which part of a batch's past a block of the decode kernel reads.
//
// The work of a step is the list of all pages (64 tokens of one KV head), ordered by sequence, then KV head,
// then position. It is cut into equal contiguous shares, one a block: every block streams the same number
// of bytes, whatever the mix of lengths. An item, all pages of one (row, KV head), that a border cuts has
// several parts in neighbouring blocks; each leaves a partial result, and the last block to finish adds them
// up. A block has at most two parts of cut items: at its share's beginning, of an item that an earlier block
// began, and at its end, of one that it begins itself. Hence two slots for partial results, `block` and
// `grid + block`, and one counter, for the item that begins in it.
//
// Where the items are few and not long, each has a cluster of blocks instead, which share its pages and add
// up their results in shared memory: two trips to the cache less.
//
// Everything is found by one warp from the sequences in device memory, since a graph freezes what the host
// knew. All functions here are called by a whole warp and give the same answer to its lanes.
#include <cstdint>
#include <cstring>

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
  int slot = -1;      ///< where the partial result goes; -1: the part is the item; kSlotOfTeam
  unsigned item = 0;  ///< first page of the item, in the list of all
  unsigned item_pages = 0;
};

/// Pages of a sequence that is decoded, 0 of any other.
__device__ __forceinline__ int decode_pages(int position, int tokens) {
  return tokens == 1 ? position / kBlockTokens + 1 : 0;
}

/// Past the L1 cache: where the batch is settled no wait_for_previous() stands between its writer and here.
__device__ __forceinline__ SequenceRows load_sequence(const SequenceRows* from) {
  static_assert(sizeof(SequenceRows) == 24 && alignof(SequenceRows) == 8);
  const auto* at = reinterpret_cast<const unsigned long long*>(from);
  const unsigned long long words[3] = {__ldcg(at), __ldcg(at + 1), __ldcg(at + 2)};
  SequenceRows sequence;
  memcpy(&sequence, words, sizeof sequence);
  return sequence;
}

/// 32 sequences, one a lane.
class SequenceWindow {
 public:
  __device__ SequenceWindow(const SequenceRows* sequences, int count, int lane)
      : sequences_(sequences), count_(count), lane_(lane) {}

  /// Loads the window that holds sequence s, unless it is there.
  __device__ void move_to(int s) {
    const int base = s / 32 * 32;
    if (base == base_) return;
    base_ = base;
    mine_ = base + lane_ < count_ ? load_sequence(sequences_ + base + lane_) : SequenceRows{};
  }
  __device__ const SequenceRows& mine() const { return mine_; }
  /// Of all KV heads of this lane's sequence, when it is decoded.
  __device__ int pages(int kv_heads) const { return decode_pages(mine_.position, mine_.tokens) * kv_heads; }
  __device__ SequenceRows get(int s) const {
    const auto blocks = reinterpret_cast<unsigned long long>(mine_.blocks);
    return {reinterpret_cast<const BlockId*>(__shfl_sync(~0u, blocks, s % 32)),
            __shfl_sync(~0u, mine_.position, s % 32), __shfl_sync(~0u, mine_.tokens, s % 32),
            __shfl_sync(~0u, mine_.row, s % 32)};
  }

 private:
  const SequenceRows* sequences_;
  int count_, lane_;
  int base_ = -1;
  SequenceRows mine_{};
};

/// The list of pages cut into shares that differ by one page at most, the larger ones first.
struct Shares {
  unsigned count, pages, larger;  // the first `larger` have pages + 1

  __device__ Shares(unsigned total, unsigned least, unsigned most) {
    count = min(most, least > 1 ? max(total / least, min(total, 1u)) : total);
    pages = count == total ? 1 : total / count;
    larger = total - pages * count;
  }
  __device__ unsigned begin(unsigned share) const { return share * pages + min(share, larger); }
  /// The share that has the page.
  __device__ unsigned of(unsigned page) const {
    const unsigned border = larger * (pages + 1);
    return page < border ? page / (pages + 1) : larger + (page - border) / pages;
  }
};

/// Sum over the lanes up to and including this one.
__device__ __forceinline__ unsigned sum_upto(unsigned value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(~0u, value, unsigned(step));
    if (lane >= step) value += other;
  }
  return value;
}

/// Items of more parts than this, on average, are not worth a block for each of their pages.
constexpr unsigned kManyParts = 16;

/// Calls take(part, shares) for each part of block `block`'s share, in order.
template <class Take>
__device__ void for_each_share_part(const SequenceRows* sequences, int count, int kv_heads, unsigned block,
                                    unsigned grid, int lane, Take&& take) {
  // First each lane has the pages of a run of windows of 32 sequences; then of one sequence of a window.
  SequenceWindow window(sequences, count, lane);
  const int windows = (count + 31) / 32, run = (windows + 31) / 32;
  unsigned mine = 0;
  if (windows == 1) {
    window.move_to(0);
    mine = unsigned(window.pages(kv_heads));
  } else {
    constexpr int kAhead = 8;
    for (int w = 0; w < windows; w += kAhead) {
      int pages[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const SequenceRows s = load_sequence(sequences + min(32 * (w + i) + lane, count - 1));
        pages[i] = decode_pages(s.position, s.tokens) * kv_heads;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int s = 32 * (w + i) + lane;
        const unsigned sum = __reduce_add_sync(~0u, unsigned(s < count ? pages[i] : 0));
        mine += lane == (w + i) / run ? sum : 0;
      }
    }
  }
  unsigned upto = sum_upto(mine, lane);
  const unsigned total = __shfl_sync(~0u, upto, 31);
  const Shares shares(total, total > unsigned(count * kv_heads) * kManyParts ? 2 : 1, grid);
  if (block >= shares.count) return;
  const unsigned begin = shares.begin(block), end = shares.begin(block + 1);

  // The sequence in which the share begins, and the pages before it.
  int found = __ffs(int(__ballot_sync(~0u, begin < upto))) - 1;
  unsigned before = __shfl_sync(~0u, upto - mine, found);
  int s = found;
  if (windows > 1) {
    for (s = found * run * 32;; s += 32) {
      window.move_to(s);
      mine = unsigned(window.pages(kv_heads));
      upto = sum_upto(mine, lane);
      const unsigned holds = __ballot_sync(~0u, begin < before + upto);
      if (holds != 0) {
        found = __ffs(int(holds)) - 1;
        before += __shfl_sync(~0u, upto - mine, found);
        s += found;
        break;
      }
      before += __shfl_sync(~0u, upto, 31);
    }
  }

  SequenceRows sequence = window.get(s);
  int pages = decode_pages(sequence.position, sequence.tokens);
  const unsigned offset = begin - before;
  int head = 0;
  for (int first = 0; first < kv_heads; first += 32) {  // heads that end before the share begins
    const int h = first + lane;
    head += __popc(__ballot_sync(~0u, h < kv_heads && offset >= unsigned((h + 1) * pages)));
  }
  int page = int(offset) - head * pages;
  for (unsigned at = begin;;) {
    DecodePart part{.blocks = sequence.blocks,
                    .length = sequence.position + 1,
                    .first_page = page,
                    .end_page = end - at < unsigned(pages - page) ? page + int(end - at) : pages,
                    .row = sequence.row,
                    .kv_head = head};
    if (page > 0 || part.end_page < pages) part.slot = int(block) + (page == 0 ? int(grid) : 0);
    part.item = at - unsigned(page);
    part.item_pages = unsigned(pages);
    take(part, shares);
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

/// Blocks of a cluster.
constexpr int kTeam = 8;
/// What the parts of an item in blocks anywhere cost more, in pages of a block's.
constexpr int kPagesOfMeeting = 4;
/// DecodePart::slot of a part whose item a cluster has.
constexpr int kSlotOfTeam = -2;

/// A cluster's item.
struct TeamItem {
  int pages = 0;  ///< 0: none
  int row = 0, kv_head = 0;

  __device__ int begin(int rank) const { return rank * pages / kTeam; }
  __device__ bool has(int rank) const { return begin(rank) < begin(rank + 1); }
  __device__ int parts() const { return min(pages, kTeam); }
};

/// Whether clusters are to have an item each; if so, `item` is this block's, and take(part, no shares) was
/// called for its part, where it has one. At most 32 sequences.
template <class Take>
__device__ bool team_part(const SequenceRows* sequences, int count, int kv_heads, unsigned block, unsigned grid,
                          int lane, TeamItem& item, Take&& take) {
  SequenceWindow window(sequences, count, lane);
  window.move_to(0);
  const auto pages = unsigned(decode_pages(window.mine().position, window.mine().tokens));
  const unsigned most = __reduce_max_sync(~0u, pages),
                 total = __reduce_add_sync(~0u, pages) * unsigned(kv_heads);
  const int items = count * kv_heads, at = int(block / kTeam), rank = int(block % kTeam);
  if (unsigned(items) > grid / kTeam || most / kTeam > total / grid + kPagesOfMeeting) return false;
  if (at >= items) return true;
  const int s = at / kv_heads;
  const SequenceRows sequence = window.get(s);
  item = {.pages = int(__shfl_sync(~0u, pages, s)), .row = sequence.row, .kv_head = at % kv_heads};
  if (item.has(rank)) {
    take(DecodePart{.blocks = sequence.blocks,
                    .length = sequence.position + 1,
                    .first_page = item.begin(rank),
                    .end_page = item.begin(rank + 1),
                    .row = item.row,
                    .kv_head = item.kv_head,
                    .slot = item.parts() > 1 ? kSlotOfTeam : -1},
         Shares(0, 1, 1));
  }
  return true;
}

/// Calls take(part, no shares) for every grid-th item of all rows of all sequences, none of them cut.
template <class Take>
__device__ void for_each_whole_row(const SequenceRows* sequences, int count, int rows, int kv_heads,
                                   unsigned block, unsigned grid, int lane, Take&& take) {
  SequenceWindow window(sequences, count, lane);
  int base = 0;
  for (auto item = std::int64_t(block); item < std::int64_t(rows) * kv_heads; item += grid) {
    const int row = int(item / kv_heads);
    unsigned found = 0;
    for (; base < count; base += 32) {
      window.move_to(base);
      const SequenceRows& s = window.mine();
      found = __ballot_sync(~0u, s.row <= row && row < s.row + s.tokens);
      if (found != 0) break;
    }
    if (found == 0) return;  // padding is last
    const SequenceRows sequence = window.get(__ffs(int(found)) - 1);
    const int length = sequence.position + row - sequence.row + 1;
    take(DecodePart{.blocks = sequence.blocks,
                    .length = length,
                    .first_page = 0,
                    .end_page = (length + kBlockTokens - 1) / kBlockTokens,
                    .row = row,
                    .kv_head = int(item % kv_heads)},
         Shares(0, 1, 1));
  }
}

}  // namespace troupe::kernels::cuda
