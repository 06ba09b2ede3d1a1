#pragma once
// How many draft tokens the rows of a step verify. Pure: every duration is an argument.
#include <array>
#include <cstddef>
#include <cstdint>

namespace troupe {

/// Chooses among none, half as many and as many as the worker makes: the number with which rows were measured
/// to yield the most tokens a second. Steps of similar numbers of rows are measured together. A choice that
/// was not measured yet is tried first, and later one step in kProbeEvery tries a choice other than the best,
/// since texts change. A new best has to be better by kHysteresis.
///
/// Steps with prompts are not learnt from: they say little about drafts.
class DraftControl {
 public:
  static constexpr std::int32_t kProbeEvery = 64;
  static constexpr std::int32_t kFirstSteps = 4;  ///< of each choice, before any is preferred
  static constexpr double kHysteresis = 1.02;

  /// A new worker: forgets all. `most`: draft tokens that a row may verify; 0: the worker makes none.
  void attach(std::int32_t most);

  /// For the next step with so many decoding rows, at least 1; at most `most`.
  std::int32_t drafts_for(std::int32_t rows, std::int32_t most) const;

  /// A step of `rows` rows, and nothing else, each with up to `drafts` draft tokens, yielded so many tokens.
  void learn(std::int32_t rows, std::int32_t drafts, std::int32_t yielded, double seconds);

 private:
  static constexpr std::size_t kMostChoices = 3;
  static constexpr std::size_t kSizes = 13;  ///< 1, 2, 3…4, 5…8, … 2049…4096 rows

  /// Decayed sums over steps.
  struct Measured {
    double tokens_per_row = 0;
    double seconds = 0;
    std::int32_t steps = 0;

    double rate() const { return seconds > 0 ? tokens_per_row / seconds : 0; }
  };
  struct Size {
    std::array<Measured, kMostChoices> choices;
    std::size_t best = 0;
    std::int32_t since_probe = 0;
    std::size_t probe = 0;  ///< the choice that was tried last
  };

  static std::size_t size_of(std::int32_t rows);
  std::size_t choose(const Size& size, std::size_t choices) const;

  std::array<std::int32_t, kMostChoices> drafts_{};  ///< of each choice, ascending from 0
  std::size_t choices_ = 0;
  std::array<Size, kSizes> sizes_;
};

}  // namespace troupe
