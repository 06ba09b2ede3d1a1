#pragma once
// How many draft tokens the rows of a step verify. Pure: every duration is an argument.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/draft_choices.h"

namespace troupe {

/// Chooses among draft_choices() the number with which rows yield the most tokens a second: what they yield
/// is a matter of the texts, and known from all steps together; how long a step takes is measured for each
/// number of drafts and each size of step. A choice whose steps of a size were not measured yet is tried
/// first. Later, after kProbeEvery steps, kProbeSteps steps try a choice other than the best, since texts
/// change; while that yields more than the best, it goes on. What the first of them yields says nothing: a
/// layer's drafts come a step after they are asked for. A new best has to be better by kHysteresis.
///
/// Steps with prompts are not learnt from: they say little about drafts.
class DraftControl {
 public:
  static constexpr std::int32_t kProbeEvery = 128, kProbeSteps = 2;
  static constexpr std::int32_t kFirstSteps = 4;  ///< of each choice and size, before any is preferred
  static constexpr double kHysteresis = 1.02;

  /// A new worker: forgets all. `most`: draft tokens that a row may verify; 0: the worker makes none.
  void attach(std::int32_t most);

  /// For the next step with so many decoding rows, at least 1; at most `most`.
  std::int32_t drafts_for(std::int32_t rows, std::int32_t most) const;

  /// A step of `rows` rows, and nothing else, of which those from a last token had up to `drafts` draft
  /// tokens each and yielded `yields` tokens.
  void learn(std::int32_t rows, std::int32_t drafts, std::span<const std::int32_t> yields, double seconds);

 private:
  static constexpr std::size_t kMostChoices = 3;
  static constexpr std::size_t kSizes = 13;  ///< 1, 2, 3…4, 5…8, … 2049…4096 rows

  struct Measured {
    double seconds = 0;
    std::int32_t steps = 0;
  };
  struct Size {
    std::array<Measured, kMostChoices> choices;
    std::size_t best = 0;
    std::int32_t since_probe = 0;
    std::size_t probe = 0;  ///< the choice that was tried last
    /// Of the probe under way. From kProbeSteps on it does better than the best, and goes on.
    std::int32_t probe_steps = 0;
  };

  static std::size_t size_of(std::int32_t rows);
  std::size_t choose(const Size& size, std::size_t choices) const;
  void learn_yields(std::int32_t drafts, std::int32_t usual, std::span<const std::int32_t> yields);
  double tokens_per_row(std::int32_t drafts) const;
  double rate(const Size& size, std::size_t choice) const;

  std::vector<std::int32_t> drafts_;            ///< of each choice
  std::array<double, kMostDrafts> accepted_{};  ///< [i]: share of rows that yield more than i + 1 tokens
  std::array<Size, kSizes> sizes_;
};

}  // namespace troupe
