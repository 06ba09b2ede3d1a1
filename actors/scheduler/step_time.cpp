#include "actors/scheduler/step_time.h"

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

/// Weight of a step relative to the next one: about the last twenty steps count.
constexpr double kDecay = 0.95;
/// Likewise when the one after it took kSurprise times, or one kSurprise-th of, what was predicted.
constexpr double kFastDecay = 0.6, kSurprise = 1.25;
constexpr int kSweeps = 8;

double pairs_of(double position, double count) { return count * position + count * (count + 1) / 2; }

}  // namespace

void StepWork::add(std::int32_t position, std::int32_t count) {
  tokens += count;
  if (count == 1) {
    context += position + 1;
  } else {
    pairs += static_cast<std::int64_t>(pairs_of(position, count));
  }
}

void StepTimeModel::reset(double per_token_s) { *this = {}, coefficients_[1] = per_token_s; }

StepTimeModel::Terms StepTimeModel::terms(const StepWork& work) {
  return {1, static_cast<double>(work.tokens), static_cast<double>(work.context),
          static_cast<double>(work.pairs)};
}

double StepTimeModel::predict_s(const StepWork& work) const {
  const Terms x = terms(work);
  double seconds = 0;
  for (std::size_t i = 0; i < kTerms; ++i) seconds += coefficients_[i] * x[i];
  return seconds;
}

void StepTimeModel::learn(const StepWork& work, double seconds) {
  if (work.tokens <= 0 || !(seconds > 0)) return;
  const double predicted = predict_s(work);
  if (learnt_ == kFirstSteps) {
    seconds = std::clamp(seconds, predicted / kMostOff, predicted * kMostOff);
  } else {
    ++learnt_;
  }
  const bool surprises = seconds > kSurprise * predicted || kSurprise * seconds < predicted;
  const double decay = surprises ? kFastDecay : kDecay;
  Terms x = terms(work);
  for (double& term : x) term /= seconds;
  for (std::size_t i = 0; i < kTerms; ++i) {
    sums_[i] = decay * sums_[i] + x[i];
    for (std::size_t j = 0; j < kTerms; ++j) products_[i][j] = decay * products_[i][j] + x[i] * x[j];
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    // Tokens first: of coefficients that explain an error equally well, the first takes it.
    for (const std::size_t i : {1, 3, 2, 0}) {
      double error = sums_[i];
      for (std::size_t j = 0; j < kTerms; ++j) error -= products_[i][j] * coefficients_[j];
      if (products_[i][i] > 0) coefficients_[i] = std::max(0.0, coefficients_[i] + error / products_[i][i]);
    }
  }
}

std::int32_t StepTimeModel::most_tokens(const StepWork& work, std::int32_t position, double limit_s,
                                        std::int32_t most) const {
  const double left_s = limit_s - predict_s(work);
  if (!(left_s > 0)) return 0;
  // per_pair / 2 · n² + linear · n = left_s
  const double per_pair = coefficients_[3];
  const double linear = coefficients_[1] + per_pair * (position + 0.5);
  const double root = linear + std::sqrt(linear * linear + 2 * per_pair * left_s);
  if (!(root > 0)) return most;
  return static_cast<std::int32_t>(std::min(static_cast<double>(most), 2 * left_s / root));
}

}  // namespace troupe
