#include "kernels/cpu/filter.h"

#include <algorithm>
#include <cmath>

namespace troupe::kernels {
namespace {

struct Tally {
  std::uint64_t number = 0;
  std::uint64_t sum = 0;
};

Tally tally(const Routines& routines, const std::uint32_t* weights, int vocab, std::uint32_t threshold) {
  Tally t;
  routines.tally(weights, vocab, threshold, &t.number, &t.sum);
  return t;
}

/// The largest threshold in [low, kFullWeight] whose tally is `enough`; that of `low` is.
template <class Enough>
std::uint32_t largest_threshold(const Routines& routines, const std::uint32_t* weights, int vocab,
                                std::uint32_t low, Enough&& enough) {
  std::uint32_t high = kFullWeight + 1;  // not enough
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    (enough(tally(routines, weights, vocab, middle)) ? low : high) = middle;
  }
  return low;
}

/// One past the id of the count-th token whose weight is exactly `border`.
TokenId end_of_border(const std::uint32_t* weights, int vocab, std::uint32_t border, std::uint64_t count) {
  TokenId id = 0;
  for (; id < vocab && count > 0; ++id) count -= weights[id] == border;
  return id;
}

}  // namespace

Kept filter(const Routines& routines, const std::uint32_t* weights, int vocab, int top_k, float top_p,
            float min_p) {
  const auto least = static_cast<std::uint32_t>(std::ceil(static_cast<double>(min_p) * kFullWeight));
  Kept kept{.border = std::clamp(least, 1u, kFullWeight), .border_end = vocab};
  const bool limit_number = top_k > 0 && top_k < vocab;
  const bool limit_sum = top_p < 1;
  if (!limit_number && !limit_sum) return kept;

  Tally all = tally(routines, weights, vocab, kept.border);
  if (limit_number && all.number > static_cast<std::uint64_t>(top_k)) {
    const auto k = static_cast<std::uint64_t>(top_k);
    kept.border =
        largest_threshold(routines, weights, vocab, kept.border, [&](Tally t) { return t.number >= k; });
    const Tally above = tally(routines, weights, vocab, kept.border + 1);
    kept.border_end = end_of_border(weights, vocab, kept.border, k - above.number);
    all = {k, above.sum + (k - above.number) * kept.border};
  }
  if (!limit_sum) return kept;

  // The smallest set, from the largest weight down, that reaches top_p of what top_k left.
  const auto wanted = std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::ceil(static_cast<double>(top_p) * static_cast<double>(all.sum))));
  const Tally above_k = tally(routines, weights, vocab, kept.border + 1);
  std::uint64_t above_sum = above_k.sum;
  if (above_k.sum >= wanted) {
    kept.border = largest_threshold(routines, weights, vocab, kept.border + 1,
                                    [&](Tally t) { return t.sum >= wanted; });
    above_sum = tally(routines, weights, vocab, kept.border + 1).sum;
    kept.border_end = vocab;
  }
  const std::uint64_t needed = (wanted - above_sum + kept.border - 1) / kept.border;
  kept.border_end = std::min(kept.border_end, end_of_border(weights, vocab, kept.border, needed));
  return kept;
}

TokenId draw(const std::uint32_t* weights, int vocab, Kept kept, std::uint32_t bits) {
  const auto weight = [&](TokenId id) -> std::uint32_t {
    const std::uint32_t w = weights[id];
    return w > kept.border || (w == kept.border && id < kept.border_end) ? w : 0;
  };
  constexpr int kBlock = 1024;
  const auto block_sum = [&](int begin) {
    std::uint64_t sum = 0;
    for (int id = begin, end = std::min(vocab, begin + kBlock); id < end; ++id) sum += weight(id);
    return sum;
  };
  std::uint64_t total = 0;
  for (int begin = 0; begin < vocab; begin += kBlock) total += block_sum(begin);
  const auto target = static_cast<std::uint64_t>(static_cast<unsigned __int128>(bits) * total >> 32);
  std::uint64_t before = 0;
  for (int begin = 0; begin < vocab; begin += kBlock) {
    const std::uint64_t sum = block_sum(begin);
    if (before + sum <= target) {
      before += sum;
      continue;
    }
    for (TokenId id = begin;; ++id) {
      before += weight(id);
      if (before > target) return id;
    }
  }
  return 0;  // unreachable: target < total
}

}  // namespace troupe::kernels
