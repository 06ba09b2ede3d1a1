#pragma once
// How long a step takes, learnt from steps that have run. Pure: no clock; every duration is an argument.
#include <array>
#include <cstddef>
#include <cstdint>

namespace troupe {

/// What the time of a step depends on, as a plan shows it.
struct StepWork {
  std::int64_t tokens = 0;   ///< positions that are run
  std::int64_t context = 0;  ///< KV positions that rows of one token read
  std::int64_t pairs = 0;    ///< of a query and a key, in rows of several tokens

  /// Adds a row that runs `count` positions from `position` on.
  void add(std::int32_t position, std::int32_t count);
};

/// seconds = fixed + per_token · tokens + per_context · context + per_pair · pairs, no coefficient below 0:
/// the least squares of relative errors over the last steps, older ones counting less.
///
/// Coordinates are descended from the former coefficients. So what the last steps did not vary (chunks of one
/// size do not tell the fixed part from the part per token) stays as it was. One measurement moves the model
/// only as if it were at most kMostOff times, or at least one kMostOff-th of, what was predicted: one slow
/// step (a process that was swapped out, pages that were touched first) makes the next chunks shorter by some
/// percent; several in a row make them fit, since what surprises also makes what was learnt before count
/// less.
class StepTimeModel {
 public:
  static constexpr double kMostOff = 2;
  /// Until so many steps were learnt, measurements count as they are.
  static constexpr int kFirstSteps = 2;

  /// Forgets all. Until a step was learnt, each token counts as `per_token_s`, above 0: choose it too high
  /// rather than too low.
  void reset(double per_token_s);

  /// A step with this work took so many seconds; ignored unless both are above 0.
  void learn(const StepWork& work, double seconds);

  double predict_s(const StepWork& work) const;

  /// Most positions, 0 to `most`, of a prompt that was computed up to `position`, with which a step that does
  /// `work` already is predicted to take at most `limit_s`.
  std::int32_t most_tokens(const StepWork& work, std::int32_t position, double limit_s,
                           std::int32_t most) const;

 private:
  static constexpr std::size_t kTerms = 4;  ///< fixed, tokens, context, pairs
  using Terms = std::array<double, kTerms>;

  static Terms terms(const StepWork& work);

  Terms coefficients_{};
  std::array<Terms, kTerms> products_{};  ///< decayed sums over steps of term × term / seconds²
  Terms sums_{};                          ///< likewise of term / seconds
  int learnt_ = 0;                        ///< steps, up to kFirstSteps
};

}  // namespace troupe
