#include "kernels/cpu/filter.h"

#include <algorithm>
#include <cmath>

namespace troupe::kernels {
namespace {

struct WeightTally {
  std::uint64_t number = 0;
  std::uint64_t sum = 0;
};

WeightTally tally(const Routines& routines, const std::uint32_t* weights, int vocab, std::uint32_t threshold) {
  WeightTally t;
  routines.tally(weights, vocab, threshold, &t.number, &t.sum);
  return t;
}

WeightTally operator+(WeightTally a, WeightTally b) { return {a.number + b.number, a.sum + b.sum}; }

/// The largest threshold in [low, kFullWeight] whose tally is `enough`; that of `low` is. First the power of
/// two below it is found over all weights; the rest of the search looks only at those of that octave.
template <class Enough>
std::uint32_t largest_threshold(const Routines& routines, const std::uint32_t* weights, int vocab,
                                std::uint32_t low, std::uint32_t* working, Enough&& enough) {
  int least = 0, most = 31;  // 2^least is at or below the threshold sought, or below `low`; 2^most above
  while (most - least > 1) {
    const int middle = (least + most) / 2;
    const std::uint32_t power = 1u << middle;
    (power <= low || enough(tally(routines, weights, vocab, power)) ? least : most) = middle;
  }
  low = std::max(low, 1u << least);
  std::uint32_t high = std::min(1u << most, kFullWeight + 1);  // not enough
  const WeightTally above = tally(routines, weights, vocab, high);
  const int candidates = routines.collect(working, weights, vocab, low, high);
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    (enough(above + tally(routines, working, candidates, middle)) ? low : high) = middle;
  }
  return low;
}

/// One past the id of the count-th token of those `there` are with a weight of exactly `border`.
TokenId end_of_border(const std::uint32_t* weights, int vocab, std::uint32_t border, std::uint64_t count,
                      std::uint64_t there) {
  if (count >= there) return vocab;
  TokenId id = 0;
  for (; count > 0; ++id) count -= weights[id] == border;
  return id;
}

}  // namespace

Kept filter(const Routines& routines, const std::uint32_t* weights, int vocab, int top_k, float top_p,
            float min_p, std::uint32_t* working) {
  const auto least = static_cast<std::uint32_t>(std::ceil(static_cast<double>(min_p) * kFullWeight));
  Kept kept{.border = std::clamp(least, 1u, kFullWeight), .border_end = vocab};
  const bool limit_number = top_k > 0 && top_k < vocab;
  const bool limit_sum = top_p < 1;
  if (!limit_number && !limit_sum) return kept;

  WeightTally all = tally(routines, weights, vocab, kept.border);
  if (limit_number && all.number > static_cast<std::uint64_t>(top_k)) {
    const auto k = static_cast<std::uint64_t>(top_k);
    kept.border = largest_threshold(routines, weights, vocab, kept.border, working,
                                    [&](WeightTally t) { return t.number >= k; });
    const WeightTally from = tally(routines, weights, vocab, kept.border);
    const WeightTally above = tally(routines, weights, vocab, kept.border + 1);
    kept.border_end =
        end_of_border(weights, vocab, kept.border, k - above.number, from.number - above.number);
    all = {k, above.sum + (k - above.number) * kept.border};
  }
  if (!limit_sum) return kept;

  // The smallest set, from the largest weight down, that reaches top_p of what top_k left.
  const auto wanted = std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::ceil(static_cast<double>(top_p) * static_cast<double>(all.sum))));
  const std::uint32_t next = kept.border + 1;
  if (tally(routines, weights, vocab, next).sum >= wanted) {
    kept.border =
        largest_threshold(routines, weights, vocab, next, working, [&](WeightTally t) { return t.sum >= wanted; });
    kept.border_end = vocab;
  }
  const WeightTally from = tally(routines, weights, vocab, kept.border);
  const WeightTally above = tally(routines, weights, vocab, kept.border + 1);
  const std::uint64_t needed = (wanted - above.sum + kept.border - 1) / kept.border;
  kept.border_end = std::min(kept.border_end,
                             end_of_border(weights, vocab, kept.border, needed, from.number - above.number));
  return kept;
}

TokenId draw(const Routines& routines, const std::uint32_t* weights, int vocab, Kept kept,
             std::uint32_t bits) {
  // Before border_end a weight stays from `border` up, after it only above.
  const auto sum = [&](int begin, int end) {
    const int middle = std::clamp(kept.border_end, begin, end);
    return tally(routines, weights + begin, middle - begin, kept.border).sum +
           tally(routines, weights + middle, end - middle, kept.border + 1).sum;
  };
  constexpr int kBlocks = 64;
  const int block = std::max(64, (vocab + kBlocks - 1) / kBlocks);
  std::uint64_t sums[kBlocks] = {};
  std::uint64_t total = 0;
  for (int i = 0; i * block < vocab; ++i) {
    sums[i] = sum(i * block, std::min(vocab, (i + 1) * block));
    total += sums[i];
  }
  const auto target = static_cast<std::uint64_t>(static_cast<unsigned __int128>(bits) * total >> 32);
  int i = 0;
  std::uint64_t before = 0;
  while (before + sums[i] <= target) before += sums[i++];  // ends: target < total
  for (TokenId id = i * block;; ++id) {
    const std::uint32_t w = weights[id];
    if (w > kept.border || (w == kept.border && id < kept.border_end)) before += w;
    if (before > target) return id;
  }
}

}  // namespace troupe::kernels
