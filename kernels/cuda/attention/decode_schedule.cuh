#pragma once
// Divides the KV pages of a decode batch among the blocks of the decode attention kernel.
//
// A page is 64 tokens of one KV head. An item is all pages of one (sequence, KV head). The list of all pages,
// ordered by sequence, KV head and position, is cut into equal contiguous shares, one per block: every block
// reads the same number of bytes, whatever the mix of lengths. A cut item has parts in several neighbouring
// blocks. Each part stores a partial result; the last block to finish merges them. A block has at most two
// parts of cut items: one that an earlier block began, and one that it begins itself. So it has two slots for
// partial results, `block` and `grid + block`, and one counter, for the item that it begins.
//
// If the items are few and short, a cluster of blocks shares each item instead and merges in shared memory,
// which saves two round trips to the L2 cache.
//
// The tokens of a sequence may be cut into passes, each an item: pass i of all sequences comes before pass
// i + 1 of any, so blocks that read the same pages in several passes read them at about the same time, and
// all but one of them from the L2 cache.
//
// One warp computes this from the sequences in device memory, because a CUDA graph freezes what the host
// knew. A whole warp calls each function here; all lanes get the same result.
#include <cstdint>
#include <cstring>

#include "kernels/batch.h"
#include "kernels/cuda/warp_scan.cuh"

namespace troupe::kernels::cuda {

/// One block's part of one item.
struct DecodePart {
  const BlockId* blocks = nullptr;
  int length = 0;      ///< tokens of the whole past, the item's own included
  int first_page = 0;  ///< of this part
  int end_page = 0;
  int row = 0;  ///< of the item's first token
  int kv_head = 0;
  int slot = -1;      ///< for the partial result; -1: the part is the whole item; or kClusterSlot
  unsigned item = 0;  ///< index of the item's first page in the list of all pages
  unsigned item_pages = 0;
  int tokens = 1;   ///< whose rows the item computes: the last ones of `length`
  int settled = 0;  ///< tokens of the past that lie before the batch's own
};

/// Bypasses the L1 cache: with Attention::settled no wait_for_previous() orders this read after the write.
__device__ __forceinline__ SequenceRows load_sequence(const SequenceRows* from) {
  static_assert(sizeof(SequenceRows) == 24 && alignof(SequenceRows) == 8);
  const auto* at = reinterpret_cast<const unsigned long long*>(from);
  const unsigned long long words[3] = {__ldcg(at), __ldcg(at + 1), __ldcg(at + 2)};
  SequenceRows sequence;
  memcpy(&sequence, words, sizeof sequence);
  return sequence;
}

// Which sequences of a batch decode, and in which passes. A pass over a sequence is a sequence itself: i of
// load() counts the `count` sequences once for each pass.
/// Those with one token.
struct OneToken {
  __device__ static constexpr int passes() { return 1; }
  __device__ static SequenceRows load(const SequenceRows* sequences, int, int i) {
    return load_sequence(sequences + i);
  }
  /// Tokens of the sequence before pass i that are in the batch.
  __device__ static constexpr int skipped(int, int) { return 0; }
  __device__ bool takes(int tokens) const { return tokens == 1; }
  /// Tokens of a sequence that it takes.
  __device__ static constexpr int tokens(const SequenceRows&) { return 1; }
  __device__ int pages(int position, int tokens) const {
    return takes(tokens) ? position / kBlockTokens + 1 : 0;
  }
};
/// Those with 1 … `most` tokens, `pass_tokens` in a pass.
struct FewTokens {
  int most, pass_tokens;
  __device__ int passes() const { return (most + pass_tokens - 1) / pass_tokens; }
  __device__ SequenceRows load(const SequenceRows* sequences, int count, int i) const {
    SequenceRows sequence = load_sequence(sequences + i % count);
    const int skip = skipped(count, i);
    sequence.tokens = sequence.tokens <= most ? min(sequence.tokens - skip, pass_tokens) : 0;
    sequence.position += skip;
    sequence.row += skip;
    return sequence;
  }
  __device__ int skipped(int count, int i) const { return i / count * pass_tokens; }
  __device__ bool takes(int tokens) const { return tokens >= 1; }
  __device__ static int tokens(const SequenceRows& sequence) { return sequence.tokens; }
  /// Pages per KV head of a decoding sequence; 0 for any other sequence.
  __device__ int pages(int position, int tokens) const {
    return takes(tokens) ? (position + tokens - 1) / kBlockTokens + 1 : 0;
  }
};

/// 32 consecutive sequences, of all passes, one in the registers of each lane.
template <class Decoding>
class SequenceWindow {
 public:
  __device__ SequenceWindow(const Decoding& decoding, const SequenceRows* sequences, int count, int lane)
      : decoding_(decoding), sequences_(sequences), count_(count), lane_(lane) {}

  /// Loads the window that contains sequence s, unless it is loaded already.
  __device__ void move_to(int s) {
    const int base = s / 32 * 32;
    if (base == base_) return;
    base_ = base;
    mine_ = base + lane_ < count_ * decoding_.passes() ? decoding_.load(sequences_, count_, base + lane_)
                                                       : SequenceRows{};
  }
  __device__ const SequenceRows& mine() const { return mine_; }
  /// Pages of all KV heads of this lane's sequence; 0 if it is not decoding.
  __device__ int pages(int kv_heads) const {
    return decoding_.pages(mine_.position, mine_.tokens) * kv_heads;
  }
  __device__ SequenceRows get(int s) const {
    const auto blocks = reinterpret_cast<unsigned long long>(mine_.blocks);
    return {reinterpret_cast<const BlockId*>(__shfl_sync(~0u, blocks, s % 32)),
            __shfl_sync(~0u, mine_.position, s % 32), __shfl_sync(~0u, mine_.tokens, s % 32),
            __shfl_sync(~0u, mine_.row, s % 32)};
  }

 private:
  const Decoding& decoding_;
  const SequenceRows* sequences_;
  int count_, lane_;
  int base_ = -1;
  SequenceRows mine_{};
};

/// The list of pages, cut into shares whose sizes differ by at most one page; larger shares come first.
struct Shares {
  unsigned count, pages, larger;  // the first `larger` shares have pages + 1 pages, the others `pages`

  __device__ Shares(unsigned total, unsigned min_pages, unsigned max_shares) {
    count = min(max_shares, min_pages > 1 ? max(total / min_pages, min(total, 1u)) : total);
    pages = count == total ? 1 : total / count;
    larger = total - pages * count;
  }
  __device__ unsigned begin(unsigned share) const { return share * pages + min(share, larger); }
  /// Index of the share that contains the page.
  __device__ unsigned share_of(unsigned page) const {
    const unsigned border = larger * (pages + 1);
    return page < border ? page / (pages + 1) : larger + (page - border) / pages;
  }
};

/// If items have more pages than this on average, a share has at least two pages: merging so many parts
/// costs more than it saves.
constexpr unsigned kMaxSinglePageParts = 16;

/// Calls visit(part, shares) for each part in the share of block `block`, in list order.
template <class Decoding, class Visit>
__device__ void visit_share(const Decoding& decoding, const SequenceRows* sequences, int count, int kv_heads,
                            unsigned block, unsigned grid, int lane, Visit&& visit) {
  // `mine` first counts the pages of a run of windows of 32 sequences per lane, later of one sequence per
  // lane.
  SequenceWindow window(decoding, sequences, count, lane);
  const int all = count * decoding.passes(), windows = (all + 31) / 32, run = (windows + 31) / 32;
  unsigned mine = 0;
  if (windows == 1) {
    window.move_to(0);
    mine = unsigned(window.pages(kv_heads));
  } else {
    constexpr int kWindowsInFlight = 8;
    for (int w = 0; w < windows; w += kWindowsInFlight) {
      int pages[kWindowsInFlight];
#pragma unroll
      for (int i = 0; i < kWindowsInFlight; ++i) {
        const SequenceRows s = decoding.load(sequences, count, min(32 * (w + i) + lane, all - 1));
        pages[i] = decoding.pages(s.position, s.tokens) * kv_heads;
      }
#pragma unroll
      for (int i = 0; i < kWindowsInFlight; ++i) {
        const int s = 32 * (w + i) + lane;
        const unsigned sum = __reduce_add_sync(~0u, unsigned(s < all ? pages[i] : 0));
        mine += lane == (w + i) / run ? sum : 0;
      }
    }
  }
  unsigned upto = inclusive_sum(mine, lane);
  const unsigned total = __shfl_sync(~0u, upto, 31);
  const Shares shares(total, total > unsigned(all * kv_heads) * kMaxSinglePageParts ? 2 : 1, grid);
  if (block >= shares.count) return;
  const unsigned begin = shares.begin(block), end = shares.begin(block + 1);

  // Find the sequence in which the share begins, and the number of pages before that sequence.
  int found = __ffs(int(__ballot_sync(~0u, begin < upto))) - 1;
  unsigned before = __shfl_sync(~0u, upto - mine, found);
  int s = found;
  if (windows > 1) {
    for (s = found * run * 32;; s += 32) {
      window.move_to(s);
      mine = unsigned(window.pages(kv_heads));
      upto = inclusive_sum(mine, lane);
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
  int pages = decoding.pages(sequence.position, sequence.tokens);
  const unsigned offset = begin - before;
  int head = 0;
  for (int first = 0; first < kv_heads; first += 32) {  // skip heads that end before the share begins
    const int h = first + lane;
    head += __popc(__ballot_sync(~0u, h < kv_heads && offset >= unsigned((h + 1) * pages)));
  }
  int page = int(offset) - head * pages;
  for (unsigned at = begin;;) {
    DecodePart part{.blocks = sequence.blocks,
                    .length = sequence.position + decoding.tokens(sequence),
                    .first_page = page,
                    .end_page = end - at < unsigned(pages - page) ? page + int(end - at) : pages,
                    .row = sequence.row,
                    .kv_head = head,
                    .tokens = decoding.tokens(sequence),
                    .settled = sequence.position - decoding.skipped(count, s)};
    if (page > 0 || part.end_page < pages) part.slot = int(block) + (page == 0 ? int(grid) : 0);
    part.item = at - unsigned(page);
    part.item_pages = unsigned(pages);
    visit(part, shares);
    at += unsigned(part.end_page - page);
    if (at >= end) return;
    page = 0;
    if (++head == kv_heads) {
      head = 0;
      do {
        window.move_to(++s);
        sequence = window.get(s);
        pages = decoding.pages(sequence.position, sequence.tokens);
      } while (pages == 0);
    }
  }
}

constexpr int kClusterBlocks = 8;
/// Extra cost of merging an item's parts through global memory instead of a cluster's shared memory, in pages
/// that one block reads in the same time.
constexpr int kGlobalMergePages = 4;
/// DecodePart::slot of a part that is merged within a cluster.
constexpr int kClusterSlot = -2;

/// The item of a cluster; its pages are divided among the cluster's blocks by rank.
struct ClusterItem {
  int pages = 0;  ///< 0: none
  int row = 0, kv_head = 0;
  int tokens = 1;  ///< DecodePart::tokens

  __device__ int begin(int rank) const { return rank * pages / kClusterBlocks; }
  /// True if block `rank` has at least one page.
  __device__ bool has_pages(int rank) const { return begin(rank) < begin(rank + 1); }
  __device__ int parts() const { return min(pages, kClusterBlocks); }
};

/// True if each item gets a cluster of blocks. Then `item` is this cluster's item, and visit(part, no shares)
/// has been called for this block's part, if it has one. At most 32 sequences, counted once for each pass.
template <class Decoding, class Visit>
__device__ bool visit_cluster_part(const Decoding& decoding, const SequenceRows* sequences, int count,
                                   int kv_heads, unsigned block, unsigned grid, int lane, ClusterItem& item,
                                   Visit&& visit) {
  SequenceWindow window(decoding, sequences, count, lane);
  window.move_to(0);
  const auto pages = unsigned(decoding.pages(window.mine().position, window.mine().tokens));
  const unsigned longest = __reduce_max_sync(~0u, pages),
                 total = __reduce_add_sync(~0u, pages) * unsigned(kv_heads);
  const int items = count * decoding.passes() * kv_heads, at = int(block / kClusterBlocks),
            rank = int(block % kClusterBlocks);
  if (unsigned(items) > grid / kClusterBlocks || longest / kClusterBlocks > total / grid + kGlobalMergePages)
    return false;
  if (at >= items) return true;
  const int s = at / kv_heads;
  const SequenceRows sequence = window.get(s);
  item = {.pages = int(__shfl_sync(~0u, pages, s)),
          .row = sequence.row,
          .kv_head = at % kv_heads,
          .tokens = decoding.tokens(sequence)};
  if (item.has_pages(rank)) {
    visit(DecodePart{.blocks = sequence.blocks,
                     .length = sequence.position + item.tokens,
                     .first_page = item.begin(rank),
                     .end_page = item.begin(rank + 1),
                     .row = item.row,
                     .kv_head = item.kv_head,
                     .slot = item.parts() > 1 ? kClusterSlot : -1,
                     .tokens = item.tokens,
                     .settled = sequence.position - decoding.skipped(count, s)},
          Shares(0, 1, 1));
  }
  return true;
}

/// Calls visit(part, no shares) for every grid-th item of all rows of all sequences. Items are not cut.
/// Rows that no sequence covers may be anywhere.
template <class Visit>
__device__ void visit_whole_items(const SequenceRows* sequences, int count, int rows, int kv_heads,
                                  unsigned block, unsigned grid, int lane, Visit&& visit) {
  constexpr OneToken kRows{};
  SequenceWindow window(kRows, sequences, count, lane);
  int base = 0;
  for (auto item = std::int64_t(block); item < std::int64_t(rows) * kv_heads; item += grid) {
    const int row = int(item / kv_heads), from = base;
    unsigned found = 0;
    for (; base < count; base += 32) {
      window.move_to(base);
      const SequenceRows& s = window.mine();
      found = __ballot_sync(~0u, s.row <= row && row < s.row + s.tokens);
      if (found != 0) break;
    }
    if (found == 0) {
      base = from;  // a later row may have its sequence in any window from here on
      continue;
    }
    const SequenceRows sequence = window.get(__ffs(int(found)) - 1);
    const int length = sequence.position + row - sequence.row + 1;
    visit(DecodePart{.blocks = sequence.blocks,
                     .length = length,
                     .first_page = 0,
                     .end_page = (length + kBlockTokens - 1) / kBlockTokens,
                     .row = row,
                     .kv_head = int(item % kv_heads)},
          Shares(0, 1, 1));
  }
}

}  // namespace troupe::kernels::cuda
