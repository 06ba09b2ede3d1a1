#pragma once
// The scheduler decides what every step runs. Pure: no CAF, no I/O; time is an argument.
//
// The cycle is plan() ─▶ the worker executes ─▶ commit(). Up to max_steps_in_flight plans are in flight at
// once: a plan assumes that every sampling row in flight yields exactly one token, which the next row refers
// to as "what the slot sampled". So a sequence has two lengths: committed (tokens known here) and planned
// (positions that plans have run or will run). An end by length is foreseen, so it never overshoots; a stop
// id is seen one step late, and the token that the plan in flight yields for it is discarded.
//
// take_asks() asks for blocks one step ahead and granted() brings the answers; plan() never waits.
//
// The queue is in order of submission, where one step of priority is worth kPriorityWeight places. When a
// running sequence cannot go on for lack of blocks, the running one that is last in this order is put back:
// its lease is released, and it is recomputed later from all its tokens. The first is never put back, so
// every sequence finishes. Without preemption (SchedulerOptions::preempts) admission reserves all blocks that
// a sequence may need.
//
// Background sequences (Submit::background) have their places behind all others, so they are admitted last
// and put back first. They leave some slots free (WorkerLimits::background_slots). While another waits for a
// slot or for blocks, as many of them are put back as it takes; and while another has its prompt to compute,
// no row of them runs. Where steps are slow, one with their rows is the only one in flight, and none with
// their rows alone is planned before a client's request has the answer to its ask for admission. So a request
// of a client waits for the step that runs, and not for a batch.
//
// take_grammar() has what GRAMMAR must know for rows that wait for its masks. It is told of each token once;
// a row that is planned again, because its worker was lost, is asked for again.
//
// When the whole engine is lost, the fronts submit their open requests again to the next one (Submit::attempt
// above 0): each sequence with the output that its front has taken. It goes on behind these tokens, as one
// whose worker was lost: it is computed from prompt and output, and stop ids, lengths, grammar and sampling
// count that output. Prompt positions whose logprobs the front has are not reported again, and totals do not
// count the prompt again. No limit of the queue refuses it. Its place there is before all first submissions
// and, among its like, by the arrival of its request; priorities move it as they move others. One that was
// there at the deaths of engines is submitted with `alone`: it is isolated from its admission to its next
// token. What is reported names attempt and position, so that a front takes each token once.
//
// The parts, each of which says what it decides:
//
//   submission_rules.h    what may be submitted
//   worker_limits.h       what the attached worker can hold
//   sequence_lifecycle.h  the states of a sequence, and when its slot and blocks are free
//   admission.h           which waiting sequences may begin
//   leases.h              asks for blocks, and releases
//   media_rules.h         which images and videos may be submitted
//   media_work.h          images and videos: what is encoded when
//   prefix_names.h        which blocks are looked up in the prefix cache, and published
//   step_planner.h        the rows of the next step
//   steps_in_flight.h     plans that are not answered yet
//   result_reader.h       checks a result against its plan
//   death_inquiry.h       which sequences may have killed a worker
//   late_masks.h          sequences whose masks were late
//   front_table.h         the processes that take tokens
//   choice_groups.h       choices of one prompt
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/scheduler/admission.h"
#include "actors/scheduler/choice_groups.h"
#include "actors/scheduler/death_inquiry.h"
#include "actors/scheduler/front_table.h"
#include "actors/scheduler/grammar_updates.h"
#include "actors/scheduler/leases.h"
#include "actors/scheduler/media_work.h"
#include "actors/scheduler/prefix_names.h"
#include "actors/scheduler/result_reader.h"
#include "actors/scheduler/scheduler_counters.h"
#include "actors/scheduler/sequence.h"
#include "actors/scheduler/sequence_lifecycle.h"
#include "actors/scheduler/sequence_table.h"
#include "actors/scheduler/step_output.h"
#include "actors/scheduler/step_planner.h"
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
  /// The place of a background sequence is so far behind: further than any priority moves others.
  static constexpr std::int64_t kBackgroundRank = std::int64_t{1} << 50;
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
  /// While `on`, the front is behind: no plan names its sequences, those submitted later included, and none
  /// is admitted. At most the plans in flight still yield tokens for it. Sequences of other fronts run on.
  void hold(std::uint32_t front, bool on);
  /// The front has died: cancels all its sequences, and it is not held any more.
  void drop_front(std::uint32_t front);
  /// True while a sequence of the front is known, also an ending one.
  bool serves(std::uint32_t front) const;
  /// True from submit() until the sequence has ended.
  bool holds(const RequestKey& key) const { return table_.find(key) != kNoSequence; }

  /// The next StepPlan, or empty when nothing can run now or enough plans are in flight. Valid until
  /// the next call. `now_ns` is only noted, for the time a sequence waited.
  std::span<const std::byte> plan(std::int64_t now_ns);

  /// Takes the result of the oldest plan in flight. `out` is cleared first.
  Committed commit(std::span<const std::byte> result, StepOutput& out);

  /// What the worker has to be sent before the plan that the last call of plan() returned, or, if it returned
  /// none, now; false when there is nothing. Call it after every plan().
  bool take_media(std::vector<std::vector<std::byte>>& records) { return media_.take(records); }

  /// Takes a MediaDone. `out` is cleared first: a sequence whose patches are gone ends with an error.
  Committed media_done(std::span<const std::byte> bytes, StepOutput& out);

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
  /// Ends a sequence with an error. `out` is cleared first. Unknown keys are ignored.
  void form_lost(const FormLost& lost, StepOutput& out);

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
  struct Prompt {
    KnownTokens::Given ids;
    std::shared_ptr<const std::vector<SequenceItem>> media;  ///< null: it has none
    KnownTokens::Given predicted{};                          ///< likewise
  };
  void enqueue(SequenceSpec& spec, Prompt prompt, std::uint32_t group, const Submit& request,
               std::uint32_t front);
  void fail(std::uint32_t sequence, Finish how, const std::string& why, StepOutput& out);
  void end(std::uint32_t sequence, Finish how, const std::string& why, StepOutput& out);
  void report_end(ScheduledSequence& s, Finish how, const std::string& why, StepOutput& out) const;
  void note_worker(ScheduledSequence& s) const;
  void tell_grammar(ScheduledSequence& s, std::span<const TokenId> ids, std::span<const TokenId> drafts = {});
  void commit_row(std::size_t index, const PlannedRow& row, const wire::ResultRow* result, StepOutput& out);
  Finish take_token(ScheduledSequence& sequence, TokenId token);
  void make_room();
  void yield_to_foreground();
  bool yields_to(const ScheduledSequence& sequence) const;
  bool admits_foreground() const;
  void answered(std::uint32_t sequence, const Grant& grant, std::span<const BlockId> blocks);
  void fetched(const FetchOutcome& outcome);
  void begin(ScheduledSequence& sequence);

  const config::SchedulerOptions options_;
  const SubmissionRules rules_;

  std::uint32_t epoch_ = 0;     ///< of the attached worker; 0: there is none
  WorkerLimits limits_;         ///< of the attached worker, or of the last one
  std::uint64_t arrivals_ = 0;  ///< sequences submitted

  ScheduledSequences table_;
  ChoiceGroups groups_;
  Admission admission_;
  Leases leases_;
  PrefixNames names_;
  GrammarUpdates grammar_updates_;
  MediaWork media_;
  SequenceLifecycle life_;
  DeathInquiry inquiry_;
  FrontTable fronts_;
  SchedulerCounters counters_;
  StepPlanner planner_;
  StepsInFlight steps_;
  std::vector<std::int32_t> yields_;  // scratch: tokens of the rows from a last token
  ResultReader result_;
};

}  // namespace troupe
