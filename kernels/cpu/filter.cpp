#include "kernels/cpu/filter.h"

#include <algorithm>
#include <cmath>

namespace troupe::kernels {
namespace {

struct WeightTally {
  std::uint64_t number = 0;
  std::uint64_t sum = 0;
};

WeightTally tally(const Routines& routines, const std::uint32_t* weights, int vocab,
                  std::uint32_t threshold) {
  WeightTally t;
  routines.tally(weights, vocab, threshold, &t.number, &t.sum);
  return t;
}

WeightTally operator+(WeightTally a, WeightTally b) { return {a.number + b.number, a.sum + b.sum}; }

/// The largest threshold in [low, kFullWeight] whose tally is `enough`; the tally of `low` must be. A binary
/// search: first over powers of two, counting all weights; then between two powers, counting only the weights
/// that lie between them.
template <class Enough>
std::uint32_t largest_threshold(const Routines& routines, const std::uint32_t* weights, int vocab,
                                std::uint32_t low, std::uint32_t* working, Enough&& enough) {
  int below = 0, over = 31;  // exponents: max(low, 2^below) is enough, 2^over is not
  while (over - below > 1) {
    const int middle = (below + over) / 2;
    const std::uint32_t power = 1u << middle;
    (power <= low || enough(tally(routines, weights, vocab, power)) ? below : over) = middle;
  }
  low = std::max(low, 1u << below);
  std::uint32_t high = std::min(1u << over, kFullWeight + 1);  // not enough
  const WeightTally above = tally(routines, weights, vocab, high);
  const int candidates = routines.collect(working, weights, vocab, low, high);
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    (enough(above + tally(routines, working, candidates, middle)) ? low : high) = middle;
  }
  return low;
}

/// One past the id of the count-th token of weight `threshold`; `ties` tokens have that weight.
TokenId end_of_ties(const std::uint32_t* weights, int vocab, std::uint32_t threshold, std::uint64_t count,
                    std::uint64_t ties) {
  if (count >= ties) return vocab;
  TokenId id = 0;
  for (; count > 0; ++id) count -= weights[id] == threshold;
  return id;
}

}  // namespace

Kept filter(const Routines& routines, const std::uint32_t* weights, int vocab, int top_k, float top_p,
            float min_p, std::uint32_t* working) {
  const auto least = static_cast<std::uint32_t>(std::ceil(static_cast<double>(min_p) * kFullWeight));
  Kept kept{.threshold = std::clamp(least, 1u, kFullWeight), .ties_end = vocab};
  const bool limit_number = top_k > 0 && top_k < vocab;
  const bool limit_sum = top_p < 1;
  if (!limit_number && !limit_sum) return kept;

  WeightTally all = tally(routines, weights, vocab, kept.threshold);
  if (limit_number && all.number > static_cast<std::uint64_t>(top_k)) {
    const auto k = static_cast<std::uint64_t>(top_k);
    kept.threshold = largest_threshold(routines, weights, vocab, kept.threshold, working,
                                       [&](WeightTally t) { return t.number >= k; });
    const WeightTally from = tally(routines, weights, vocab, kept.threshold);
    const WeightTally above = tally(routines, weights, vocab, kept.threshold + 1);
    kept.ties_end = end_of_ties(weights, vocab, kept.threshold, k - above.number, from.number - above.number);
    all = {k, above.sum + (k - above.number) * kept.threshold};
  }
  if (!limit_sum) return kept;

  // Keep the largest weights until their sum reaches top_p of the sum that top_k left.
  const auto wanted = std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::ceil(static_cast<double>(top_p) * static_cast<double>(all.sum))));
  const std::uint32_t next = kept.threshold + 1;
  if (tally(routines, weights, vocab, next).sum >= wanted) {
    kept.threshold = largest_threshold(routines, weights, vocab, next, working,
                                       [&](WeightTally t) { return t.sum >= wanted; });
    kept.ties_end = vocab;
  }
  const WeightTally from = tally(routines, weights, vocab, kept.threshold);
  const WeightTally above = tally(routines, weights, vocab, kept.threshold + 1);
  const std::uint64_t needed = (wanted - above.sum + kept.threshold - 1) / kept.threshold;
  kept.ties_end = std::min(kept.ties_end,
                           end_of_ties(weights, vocab, kept.threshold, needed, from.number - above.number));
  return kept;
}

TokenId draw(const Routines& routines, const std::uint32_t* weights, int vocab, Kept kept,
             std::uint32_t bits) {
  // Ids below ties_end are kept from `threshold` up, later ids only above it.
  const auto sum = [&](int begin, int end) {
    const int middle = std::clamp(kept.ties_end, begin, end);
    return tally(routines, weights + begin, middle - begin, kept.threshold).sum +
           tally(routines, weights + middle, end - middle, kept.threshold + 1).sum;
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
  while (before + sums[i] <= target) before += sums[i++];  // terminates because target < total
  for (TokenId id = i * block;; ++id) {
    const std::uint32_t w = weights[id];
    if (w > kept.threshold || (w == kept.threshold && id < kept.ties_end)) before += w;
    if (before > target) return id;
  }
}

}  // namespace troupe::kernels
