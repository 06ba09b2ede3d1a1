#include "actors/scheduler/step_budget.h"

#include <algorithm>

namespace troupe {
namespace {

/// Before anything is known a step's limit holds this part of its tokens: chunks begin short and grow.
constexpr std::int32_t kFirstChunks = 16;
/// The shortest chunk is this part of a step's tokens, but kFineTile.
constexpr std::int32_t kLeastChunks = 64;
/// A prompt is slow when a step does not hold so many of it.
constexpr double kPromptsOfAStep = 4;
/// Steps below this part of the limit are not learnt from: their time says little about long chunks.
constexpr double kTellingPart = 0.25;
/// Steps above this part of the limit run alone; to wait for the end of a shorter one costs too much of it.
constexpr double kAlonePart = 0.5;
/// What is left of a long pause after each step that had a shorter one.
constexpr double kPieceDecay = 0.9;

}  // namespace

void StepBudget::attach(double limit_s, std::int32_t step_tokens, std::uint64_t weight_bytes) {
  work_ = {};
  step_limit_s_ = limit_s;
  if (limit_s == limit_s_ && step_tokens == step_tokens_ && weight_bytes == weight_bytes_) return;
  limit_s_ = limit_s;
  step_tokens_ = step_tokens;
  weight_bytes_ = weight_bytes;
  least_ = std::max(kFineTile, step_tokens / kLeastChunks);
  times_.reset(limit_s / std::max(kFineTile, step_tokens / kFirstChunks));
  piece_s_ = kFirstPiece * limit_s;
  reserved_s_ = 0;
}

double StepBudget::end_s(double part) const {
  const double least_s = predicted_s() + kLeastPart * step_limit_s_;
  return std::min(until_s(part, std::max(step_limit_s_, least_s)),
                  std::max(step_limit_s_ - reserved_s_, least_s));
}

double StepBudget::until_s(double part, double end_s) const {
  const double now_s = predicted_s();
  return now_s + part * (end_s - now_s);
}

double StepBudget::newcomer_end_s(double end_s) const {
  return std::min(end_s, predicted_s() + kLeastPart * step_limit_s_);
}

bool StepBudget::is_slow(std::int32_t position, std::int32_t left) const {
  if (!limits()) return false;
  StepWork more = work_;
  more.add(position, left);
  return times_.predict_s(more) - predicted_s() > limit_s_ / kPromptsOfAStep;
}

std::int32_t StepBudget::chunk(std::int32_t position, std::int32_t left, std::int32_t most, double until_s,
                               bool at_least) const {
  std::int32_t tokens = left;
  if (limits()) tokens = times_.most_tokens(work_, position, until_s, left);
  if (tokens < left) {
    const std::int32_t tile = tokens < kShortChunk ? kFineTile : kTile;
    const std::int32_t chunks = (left + std::max(1, tokens) - 1) / std::max(1, tokens);
    const std::int32_t equal = (left + chunks - 1) / chunks;
    tokens = std::min(tokens / tile * tile, (equal + tile - 1) / tile * tile);
    if (tokens < least_) tokens = at_least ? std::min(least_, left) : 0;
  }
  return std::min(tokens, most);
}

bool StepBudget::runs_alone(const StepWork& work, double predicted_s) const {
  return limits() && work.context == 0 && predicted_s >= kAlonePart * limit_s_;
}

void StepBudget::learn(const StepWork& work, double predicted_s, double seconds) {
  if (!limits() || work.pairs == 0 || std::max(predicted_s, seconds) < kTellingPart * limit_s_) return;
  times_.learn(work, seconds);
}

void StepBudget::learn_piece(double seconds) {
  piece_s_ = std::max(std::min(seconds, kMostPiece * limit_s_), kPieceDecay * piece_s_);
}

}  // namespace troupe
