#pragma once
// The scheduler decides what every step runs. Pure: no CAF, no I/O; time is an argument.
//
// The life of a sequence
//
//   submit ─▶ waiting ──(blocks granted)──▶ running ──(stop, length, cancel, error)──▶ ending ─▶ gone
//               ▲ │                          ▲ │                                         ▲
//               │ └▶ fetching ──(arrived)────┘ │                                         │
//               └────────(drained)────── put back ◀──(blocks ran out, it is the youngest)┘
//
// The cycle is plan() ─▶ the worker executes ─▶ commit(). Up to max_steps_in_flight plans are in flight at
// once: a plan assumes that every sampling row in flight yields exactly one token, which the next row refers
// to as "what the slot sampled". So a sequence has two lengths: committed (tokens known here) and planned
// (positions that plans have run or will run). An end by length is foreseen, so it never overshoots; a stop
// id is seen one step late, and the token that the plan in flight yields for it is discarded.
//
// A sequence that ends is `ending` until no plan in flight names its slot and no ask about it is open. Only
// then its slot is reused (with a new generation) and its blocks are released, so that neither a late result
// nor a copy on the cache ring can refer to another sequence's slot or block.
//
// A step has a budget of tokens: first decodes (one token each; there are never more slots than budget), then
// prompts in the order of admission with what is left. A prompt with many tokens left is long. While a long
// one is computed, short ones come before it in every step, but leave it a quarter of the prompts' tokens; so
// neither waits for the other. A step with prompts has a budget of time, too (step_budget.h), within which the
// same holds. By time a prompt that is not long may still be slow: then quick ones come before it. The first step
// of a prompt that is not long has little of long ones, and while nothing decodes a step with slow prompts alone is
// the only one in flight: so a quick prompt waits for one such step at most. Few long prompts are computed at once (max_long_partial_prefills); short ones
// overtake those that wait for that. take_asks() asks for blocks one step ahead and
// granted() brings the answers; plan() never waits: a row without its block is skipped. Admission asks for
// the blocks of the whole prompt at once, in queue order: by submission, where one step of priority is worth
// kPriorityWeight places. So a sequence is overtaken by a bounded number of later ones. A sequence that does
// not fit is passed over, at most kMaxPassedOver times; then no other is admitted before it. When a running
// sequence cannot go on for lack of blocks, the running one that is last in this order is put back: its lease
// is released, and it is recomputed later from all its tokens. The first is never put back, so every sequence
// finishes. Without preemption (SchedulerOptions::preempts) admission waits until the blocks of the prompt
// and of the longest answer fit into what others have not reserved; then no running sequence lacks a block.
// With a swap space, what a sequence that is put back has computed is published first, the answer under names
// that no other sequence has unless answers are cached; so it is copied out when its blocks are needed, and
// copied back when it is admitted again.
//
// Admission names the contents of the prompt's full blocks, and what is found of them is not computed: the
// sequence begins at the first position that was not found. At least its last known token is always run, for
// its logits. A full block is published when the step that filled it has come back
// (actors/cache/cache_manager.h). A sequence of which something was found in the swap space is `fetching`
// until the copies have ended: only it waits for them. When one fails it goes back to the queue.
//
// When the worker is lost, sequences are recomputed on the next one. Those with a plan in flight become
// suspects until their next token. A suspect whose start killed the worker, or that was there at two deaths,
// is isolated: it is admitted when no other suspect runs, and until it has a token its rows are the only ones
// in flight. A death then proves it to be the cause, and it fails alone. A sequence that yields a few tokens in each
// life of a worker and then kills it is isolated too, after kMaxShortLives deaths.
//
// A row that samples for a sequence with a grammar is gated, from output token gated_from on: the plan is
// made and sent as any other, and the worker's step waits for the row's mask before it samples.
// take_grammar() has what GRAMMAR must know for that. It is told of each token once; a row that is planned
// again, because its worker was lost, is asked for again. A mask that takes too long must not hold up the step:
// GRAMMAR then gives the row one that allows everything and says that the sequence is late. What the row samples, and
// the rows after it that are in flight, is dropped; when the mask has been made, the sequence runs the same position
// again and samples with it.
//
// When the whole engine is lost, the fronts submit their open requests again to the next one (Submit::attempt above 0):
// each sequence with the output that its front has taken. It goes on behind these tokens, as one whose worker was
// lost: it is computed from prompt and output, and stop ids, lengths, grammar and sampling count that output. Prompt
// positions whose logprobs the front has are not reported again, and totals do not count the prompt again. No limit of
// the queue refuses it. Its place there is before all first submissions and, among its like, by the arrival of its
// request; priorities move it as they move others. One that was there at the deaths of engines is submitted with
// `alone`: it is isolated from its admission to its next token. What is reported names attempt and position, so that
// a front takes each token once.
//
// A sequence belongs to the front that submitted it. While a front is behind, its sequences are held: they keep slots
// and blocks, and no plan names them. A held one that is isolated does not keep back the sequences of other fronts.
//
// The choices of one prompt (n > 1) form a group. The first to run is its leader; the others wait until
// the leader's prompt is committed, then fork its lease at prompt_tokens − 1 positions, and each runs the
// last prompt token itself, to sample a first token of its own.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/cache/restore_cost.h"
#include "actors/messages.h"
#include "actors/scheduler/admission.h"
#include "actors/scheduler/choice_groups.h"
#include "actors/scheduler/death_inquiry.h"
#include "actors/scheduler/front_table.h"
#include "actors/scheduler/grammar_updates.h"
#include "actors/scheduler/late_masks.h"
#include "actors/scheduler/leases.h"
#include "actors/scheduler/plan_builder.h"
#include "actors/scheduler/prefix_names.h"
#include "actors/scheduler/result_reader.h"
#include "actors/scheduler/scheduler_counters.h"
#include "actors/scheduler/sequence.h"
#include "actors/scheduler/sequence_lifecycle.h"
#include "actors/scheduler/sequence_table.h"
#include "actors/scheduler/step_budget.h"
#include "actors/scheduler/step_output.h"
#include "actors/scheduler/steps_in_flight.h"
#include "actors/scheduler/submission_rules.h"
#include "actors/scheduler/worker_limits.h"
#include "base/ids.h"
#include "base/status.h"
#include "config/options.h"
#include "ipc/wire.h"

namespace troupe {

/// What becomes of open sequences when the worker is lost.
enum class Orphans {
  fail,     ///< each ends with an error
  requeue,  ///< each is recomputed when a worker is attached again, but for one that is known to kill workers
};

/// Used by one thread. Nothing allocates per token in steady state.
class Scheduler {
 public:
  static constexpr std::int32_t kMaxPassedOver = Admission::kMaxPassedOver;
  /// How many later submissions one step of priority overtakes.
  static constexpr std::int64_t kPriorityWeight = 256;
  static constexpr std::int32_t kMaxShortLives = DeathInquiry::kMaxShortLives;
  static constexpr std::int32_t kForgivingTokens = DeathInquiry::kForgivingTokens;

  explicit Scheduler(const config::SchedulerOptions& options, const PrefixCaching& caching = {},
                     std::size_t max_tokens_in_plan = wire::kMaxTokensInPlan);

  /// A worker is ready; steps start at 1. Kept sequences that do not fit this worker end with an error in
  /// `out` (cleared first). `epoch` is not 0. Requires that no worker is attached.
  void attach(std::uint32_t epoch, const wire::Capacity& capacity, StepOutput& out);

  /// The worker is lost; plans in flight are void. `out` is cleared first.
  void detach(Orphans orphans, const std::string& why, StepOutput& out);

  /// Takes all sequences (moved from) or none. `front` names the process that takes their tokens.
  ///   unavailable       no worker has been attached yet. After one was lost, requests wait for the next
  ///   overloaded        the queue is full, in sequences or in tokens; never with Submit::attempt above 0
  ///   invalid_argument  a sequence can never run: too long, empty, no output wanted, unknown parent, …
  Status submit(Submit& request, std::uint32_t front = 0);

  /// Ends a sequence: no token of it is reported after this. Its slot and blocks are freed when the plans in
  /// flight have come back. Unknown keys are ignored.
  void cancel(const RequestKey& key);
  /// While `on`, the front is behind: no plan names its sequences, those submitted later included, and none is admitted.
  /// At most the plans in flight still yield tokens for it. Sequences of other fronts run on.
  void hold(std::uint32_t front, bool on);
  /// The front has died: cancels all its sequences, and it is not held any more.
  void drop_front(std::uint32_t front);
  /// True from submit() until the sequence has ended.
  bool holds(const RequestKey& key) const { return table_.find(key) != kNoSequence; }

  /// The next StepPlan, or empty when nothing can run now or enough plans are in flight. Valid until
  /// the next call. `now_ns` is only noted, for the time a sequence waited.
  std::span<const std::byte> plan(std::int64_t now_ns);

  /// Takes the result of the oldest plan in flight. `out` is cleared first.
  Committed commit(std::span<const std::byte> result, StepOutput& out);

  /// What the CACHE MANAGER has to do now: publications, releases, forks, blocks for the next steps. False
  /// when there is nothing. Call it after every other call. An ask is not repeated before it is answered, and
  /// a refused one only after a release. `asks` is cleared first.
  bool take_asks(CacheAsks& asks);

  /// What GRAMMAR has to know now: sequences that have begun or ended, their tokens, and the gated rows of
  /// the last plan. False when there is nothing; `update` is then unchanged. Call it after every other call,
  /// and send the plan first.
  bool take_grammar(GrammarStep& update) { return grammar_updates_.take(update); }

  /// Masks of these sequences were not made in time for their rows; before the results of those rows.
  void masks_late(const MasksLate& late);
  /// Now they are.
  void masks_made(const MasksMade& made);

  /// Answers to asks, and fetches that have ended; those of another epoch are dropped.
  void granted(const CacheGrants& grants);

  /// Sequences that have a slot and have not ended, those that are fetching included.
  std::int32_t running() const { return life_.active(); }
  std::int32_t fetching() const { return static_cast<std::int32_t>(life_.fetching().size()); }
  std::int32_t waiting() const { return life_.queue().size(); }
  std::int32_t plans_in_flight() const { return static_cast<std::int32_t>(steps_.size()); }
  /// True when no sequence is known, not even an ending one.
  bool idle() const { return table_.size() == 0; }
  const SchedulerTotals& totals() const { return counters_.totals(); }

 private:
  // scheduler.cpp
  void enqueue(SequenceSpec& spec, KnownTokens::Given prompt, std::uint32_t group, const Submit& request,
               std::uint32_t front);
  void fail(std::uint32_t sequence, Finish how, const std::string& why, StepOutput& out);

  // scheduler_plan.cpp
  std::span<const std::byte> finish_plan(PlannedStep& step);
  bool waits_for_step() const;
  double prompt_share(std::size_t decodes, std::int32_t admitted) const;
  bool is_slow(const ScheduledSequence& sequence) const;
  void plan_prompts(PlannedStep& step, std::int64_t now_ns);
  void plan_row(std::uint32_t sequence, std::int32_t most, PlannedStep& step, std::int64_t now_ns);

  // scheduler_commit.cpp
  void commit_row(std::size_t index, const PlannedRow& row, const wire::ResultRow* result, StepOutput& out);
  Finish take_token(ScheduledSequence& sequence, TokenId token);

  void make_room();
  void answered(std::uint32_t sequence, const Grant& grant, std::span<const BlockId> blocks);
  void fetched(const FetchOutcome& outcome);

  const config::SchedulerOptions options_;

  const SubmissionRules rules_;

  std::uint32_t epoch_ = 0;  ///< of the attached worker; 0: there is none
  WorkerLimits limits_;      ///< of the attached worker, or of the last one

  ScheduledSequences table_;
  ChoiceGroups groups_;
  Admission admission_;
  Leases leases_;
  PrefixNames names_;
  GrammarUpdates grammar_updates_;
  SequenceLifecycle life_;
  DeathInquiry inquiry_;
  FrontTable fronts_;
  StepsInFlight steps_;
  ResultReader result_;
  SchedulerCounters counters_;
  std::uint64_t arrivals_ = 0;

  MeasuredSpeed prefill_speed_;  ///< tokens/s of steps that mostly ran prompts
  StepBudget time_;              ///< of steps with prompts
  bool has_newcomer_ = false;    ///< the plan that is being made has the first row of a prompt that is not long
  PlanBuilder builder_;
  std::vector<std::uint32_t> long_rows_;  ///< scratch: running sequences with a long prompt left
};

}  // namespace troupe
