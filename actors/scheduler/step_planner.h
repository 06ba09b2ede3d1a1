#pragma once
// Which sequences run in the next step, and how many positions of each.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/cache/restore_cost.h"
#include "actors/scheduler/draft_control.h"
#include "actors/scheduler/grammar_updates.h"
#include "actors/scheduler/media_work.h"
#include "actors/scheduler/plan_builder.h"
#include "actors/scheduler/scheduler_counters.h"
#include "actors/scheduler/sequence_lifecycle.h"
#include "actors/scheduler/sequence_table.h"
#include "actors/scheduler/step_budget.h"
#include "actors/scheduler/steps_in_flight.h"
#include "actors/scheduler/worker_limits.h"

namespace troupe {

/// A step has a budget of tokens: first decodes (one token each; there are never more slots than budget),
/// then prompts in the order of admission with what is left. A prompt with many tokens left is long. While a
/// long one is computed, short ones come before it in every step, but leave it a quarter of the prompts'
/// tokens; so neither waits for the other. A step with prompts has a budget of time, too (step_budget.h),
/// within which the same holds; while items are encoded it leaves room for the encoder's piece before it. By
/// time a prompt that is not long may still be slow: then quick ones come before it. The first step of a
/// prompt that is not long has little of long ones, and while nothing decodes a step with slow prompts alone
/// is the only one in flight: so a quick prompt waits for one such step at most.
///
/// A background sequence has no row while another has a prompt to compute. A step with rows of background
/// sequences is planned when no other is in flight, if the last such step took kSlowStep or more: so a prompt
/// that arrives meanwhile waits for one step at most, and the worker for the next plan a small part of the
/// time. Such a step has a budget of time of its own (StepBudget::kBackgroundStepS).
///
/// While a prompt is computed that another instance goes on with, a step runs few tokens of prompts
/// (kHandOverTokens).
///
/// A plan never waits: a row without its block is skipped, and one ends where an image begins that is not
/// encoded.
///
/// A row that samples for a sequence with a grammar is gated, from output token gated_from on: the plan is
/// made and sent as any other, and the worker's step waits for the row's masks before it samples. One with
/// draft tokens is gated if the last token that it may yield is.
///
/// Where the worker drafts, a decode is a row from the sequence's last token, with as many draft tokens as
/// pay (draft_control.h).
///
/// Memory is reused from step to step.
class StepPlanner {
 public:
  /// From the end of a step to the start of one that is planned then a fraction of a millisecond passes.
  static constexpr double kSlowStep = 10e-3;

  /// At most `max_ids` ids of tokens in a plan. Borrows the rest.
  StepPlanner(std::size_t max_ids, ScheduledSequences& table, GrammarUpdates& grammar, MediaWork& media,
              SchedulerCounters& counters)
      : table_(table), grammar_(grammar), media_(media), counters_(counters), builder_(max_ids) {}

  /// A new worker. What was learnt about the time of steps is kept if limit and worker are the same as
  /// before. `max_prompt_step_s`: limit on the time of a step with prompts; 0: none. `weight_bytes`: of the
  /// worker's model.
  void attach(std::uint32_t epoch, const WorkerLimits& worker, double max_prompt_step_s,
              std::uint64_t weight_bytes);

  /// The bytes of the next plan, which is in flight then; empty when nothing can run now. Valid until the
  /// next call. `isolated`: the sequence that must have the step for itself, or kNoSequence. Requires that a
  /// worker is attached and !steps.full(). `after_command`: the cache command that the plan's blocks depend
  /// on. `now_ns` is only noted.
  std::span<const std::byte> plan(SequenceLifecycle& life, StepsInFlight& steps, std::uint32_t isolated,
                                  std::uint64_t after_command, std::int64_t now_ns);

  /// A planned step took so many seconds on the device, and began `pause_s` after the end of the one before.
  /// `yields`: tokens of each of its rows from a last token.
  void learn(const PlannedStep& step, std::span<const std::int32_t> yields, double seconds, double pause_s);
  /// Measured in steps that mostly ran prompts; 0: not known yet.
  double prefill_tokens_per_s() const { return prefill_speed_.value(); }

 private:
  void find_runnable(const std::vector<std::uint32_t>& running);
  bool waits_for(const StepsInFlight& steps) const;
  bool is_slow(const ScheduledSequence& s) const { return time_.is_slow(s.planned, s.remaining()); }
  void add_prompts(std::int32_t waiting, std::int64_t now_ns);
  std::int32_t drafts_of_step() const;
  void add_row(std::uint32_t sequence, std::int32_t most, std::int64_t now_ns);
  void add_row_from_last(std::uint32_t sequence);
  bool send_blocks(ScheduledSequence& sequence);

  ScheduledSequences& table_;
  GrammarUpdates& grammar_;
  MediaWork& media_;
  SchedulerCounters& counters_;

  std::uint32_t epoch_ = 0;
  WorkerLimits worker_;
  PlanBuilder builder_;
  StepBudget time_;  ///< of steps with prompts
  DraftControl speculation_;
  MeasuredSpeed prefill_speed_;   ///< tokens/s of steps that mostly ran prompts
  double background_step_s_ = 0;  ///< what the last step with background sequences took; 0: not known

  // Of the plan that is being made.
  PlannedStep* step_ = nullptr;
  std::uint64_t number_ = 0;
  std::int32_t drafts_ = 0;               ///< draft tokens that rows from a last token may verify
  bool has_newcomer_ = false;             ///< it has the first row of a prompt that is not long
  std::vector<std::uint32_t> decodes_;    ///< sequences that may run with one position left, and
  std::vector<std::uint32_t> prompts_;    ///< with more; both in the order of admission
  std::size_t background_ = 0;            ///< of both, background sequences
  std::vector<std::uint32_t> long_rows_;  ///< of these, those with a long prompt left
};

}  // namespace troupe
