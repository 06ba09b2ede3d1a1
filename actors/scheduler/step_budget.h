#pragma once
// How many prompt tokens a step may hold, so that it is predicted to take no longer than a limit.
#include <algorithm>
#include <cstdint>

#include "actors/scheduler/step_time.h"

namespace troupe {

/// The limit on the time of steps with prompt tokens, and what the step that is being planned has taken of
/// it. Without a limit every chunk is as long as was asked for.
class StepBudget {
 public:
  /// Forgets what was learnt, unless worker and limit are the same as before. `limit_s` 0: no limit.
  /// `step_tokens`: most tokens of a step. `weight_bytes`: of the worker's model, to tell it from another.
  void attach(double limit_s, std::int32_t step_tokens, std::uint64_t weight_bytes);

  bool limits() const { return limit_s_ > 0; }

  /// A new plan, without rows. `encodes`: an image or a video is being encoded, so the encoder may run a
  /// piece of it before the step. `background`: it may have rows of background sequences, so its prompts are
  /// all theirs; the limit is kBackgroundStepS then, if it is not below.
  void begin(bool encodes, bool background = false) {
    work_ = {};
    reserved_s_ = encodes ? piece_s_ : 0;
    step_limit_s_ = background ? std::min(limit_s_, kBackgroundStepS) : limit_s_;
  }
  /// A row of the plan: `count` positions from `position` on.
  void add(std::int32_t position, std::int32_t count) { work_.add(position, count); }
  const StepWork& work() const { return work_; }
  double predicted_s() const { return times_.predict_s(work_); }

  /// The time since the start of the step up to which prompts may be added: that of the decodes and `part` of
  /// what they leave of the limit. With a piece of the encoder before the step, both together keep to the
  /// limit. Where decodes leave less, prompts have kLeastPart of the limit nevertheless. Call it before the
  /// first prompt.
  double end_s(double part = 1) const;
  /// The time since the start of the step at which `part` of the remaining time until `end_s` has passed.
  double until_s(double part, double end_s) const;
  /// Likewise kLeastPart of the limit later than now: what a long prompt may take of a newcomer's first step.
  double newcomer_end_s(double end_s) const;

  /// True when so much of a prompt takes more than a quarter of the limit: a step does not hold four of it.
  bool is_slow(std::int32_t position, std::int32_t left) const;

  /// Positions, `left` and `most` at most, that a prompt which was computed up to `position` may run so that
  /// the step ends by `until_s`. What is left over is cut into equal chunks, and a chunk is a multiple of
  /// kTile tokens, or of kFineTile when it is shorter than kShortChunk. A shorter one than the least is not
  /// worth a row: then the result is 0, or, with `at_least`, the least.
  std::int32_t chunk(std::int32_t position, std::int32_t left, std::int32_t most, double until_s,
                     bool at_least) const;

  /// True when a step with this work and this predicted time should end before the next one with nothing but
  /// slow prompts is planned, so that a prompt which arrives meanwhile waits for one step and not for two.
  bool runs_alone(const StepWork& work, double predicted_s) const;

  /// A planned step took so many seconds. Only steps that hold prompts and come near the limit count.
  void learn(const StepWork& work, double predicted_s, double seconds);
  /// While an item was being encoded, so many seconds passed between two steps that were in flight together.
  /// The longest of the last ones counts, up to kMostPiece of the limit.
  void learn_piece(double seconds);

  /// Limit for steps with background rows: a client's request that arrives during one waits for its end.
  static constexpr double kBackgroundStepS = 0.1;
  /// Part of the limit that a long prompt may take of a newcomer's first step, and all prompts always.
  static constexpr double kLeastPart = 1.0 / 6;
  /// Parts of the limit that a piece of the encoder is taken to need until one was measured, and at most.
  static constexpr double kFirstPiece = 1.0 / 6, kMostPiece = 0.5;
  static constexpr std::int32_t kTile = 128, kFineTile = 16, kShortChunk = 512;

 private:
  StepTimeModel times_;
  StepWork work_;
  double limit_s_ = 0;
  double step_limit_s_ = 0;  ///< that of the step that is being planned
  double piece_s_ = 0;       ///< learnt
  double reserved_s_ = 0;    ///< of the limit, for a piece before the step that is being planned
  std::int32_t step_tokens_ = 0;
  std::int32_t least_ = kFineTile;  ///< tokens of the shortest chunk
  std::uint64_t weight_bytes_ = 0;
};

}  // namespace troupe
