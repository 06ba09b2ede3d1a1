#pragma once
// The scheduler: what every step runs. Pure: no CAF, no I/O; time comes in as an argument.
//
// The life of a sequence
//
//   submit ─▶ waiting ──(blocks granted)──▶ running ──(stop, length, cancel, error)──▶ ending ─▶ gone
//                ▲                             │                                         ▲
//                └────────(drained)────── put back ◀──(blocks ran out, it is the youngest)┘
//
// Three verbs: plan() ─▶ the worker executes ─▶ commit(). Up to max_steps_in_flight plans are out at once:
// a plan is built on the assumption that every sampling row out there yields exactly one token, which the
// next row takes as "what the slot sampled". So a sequence has two lengths: committed (tokens known here)
// and planned (positions that plans have run or will have run). An end by length is foreseen and never
// overshoots; a stop id is seen one step late, and what the plan in flight yields for it is discarded.
//
// A sequence that ends is `ending` until no plan in flight names its slot and no ask about it is open;
// only then is its slot free for a new tenant (with a new generation) and are its blocks released. Thus
// neither a late result nor a copy on the cache ring can meet somebody else's slot or block.
//
// One token budget makes a step: decodes first (one token each; there are never more slots than budget),
// then prompts in the order of admission, cut to what is left. Blocks are asked for one step ahead by
// take_asks() and come back by granted(); plan() never waits: a row without its block sits out. Admission
// asks for the whole prompt at once and goes in queue order, but a sequence that does not fit is passed
// over; after kMaxPassedOver times nobody overtakes it any more. When a running sequence cannot go on for
// lack of blocks, the youngest running one (by submission) is put back: its lease is released and it is
// recomputed later from all its tokens. The oldest is never put back, so everything finishes.
//
// The choices of one prompt (n > 1) form a group. The first to run is its leader; the others wait until
// the leader's prompt is committed, then fork its lease at prompt_tokens − 1 positions, and each runs the
// last prompt token itself, to sample a first token of its own.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/scheduler/choice_groups.h"
#include "actors/scheduler/plan_builder.h"
#include "actors/scheduler/sequence.h"
#include "actors/scheduler/sequence_table.h"
#include "actors/scheduler/waiting_queue.h"
#include "base/ids.h"
#include "base/status.h"
#include "config/options.h"
#include "ipc/wire.h"

namespace troupe {

/// What a commit brought. Memory is reused from step to step when the caller keeps the object.
struct StepOutput {
  std::vector<StepTokens> hosts;  ///< indexed by SESSION HOST; those without sequences are empty
  StepStats stats;                ///< all but the kv_* counts, which are the CACHE MANAGER's

  void clear();
};

enum class Committed {
  applied,
  stale,      ///< of an earlier epoch or step; dropped
  malformed,  ///< contradicts the plan or itself; dropped, and the worker is not to be trusted
};

/// What becomes of open sequences when the worker is lost.
enum class Orphans {
  fail,     ///< each ends with an error
  requeue,  ///< each is recomputed when a worker is attached again, unless it was running at two losses
};

/// Totals since construction, for metrics and tests.
struct SchedulerTotals {
  std::uint64_t steps = 0;
  std::uint64_t stale_results = 0;
  std::uint64_t malformed_results = 0;
  std::uint64_t discarded_tokens = 0;  ///< sampled after their sequence had ended
  std::uint64_t preempted = 0;
  std::uint64_t stalled_rows = 0;  ///< sat out a step for lack of a block
};

/// Used by one thread. Nothing allocates per token in steady state.
class Scheduler {
 public:
  /// A sequence may be overtaken at admission so many times.
  static constexpr std::int32_t kMaxPassedOver = 16;

  explicit Scheduler(const config::SchedulerOptions& options,
                     std::size_t max_tokens_in_plan = wire::kMaxTokensInPlan);

  /// A worker is ready; steps start at 1. Sequences kept from the last one that cannot fit this one end
  /// with an error in `out` (cleared first). `epoch` is not 0. Requires that no worker is attached.
  void attach(std::uint32_t epoch, const wire::Capacity& capacity, StepOutput& out);

  /// The worker is lost; plans in flight are void. `out` is cleared first.
  void detach(Orphans orphans, const std::string& why, StepOutput& out);

  /// Takes all sequences (moved from) or none:
  ///   unavailable       no worker is attached
  ///   overloaded        the queue is full, in sequences or in tokens
  ///   invalid_argument  a sequence can never run: too long, empty, no output wanted, unknown parent, …
  Status submit(Submit& request);

  /// Nobody waits for the sequence any more: no token of it is reported after this. Unknown keys are
  /// ignored. Its slot and blocks are free as soon as the plans in flight have come back.
  void cancel(const RequestKey& key);

  /// The next StepPlan, or empty when there is nothing to run now or enough plans are out. Valid until
  /// the next call. `now_ns` is only noted, for the time a sequence waited.
  std::span<const std::byte> plan(std::int64_t now_ns);

  /// Takes the result of the oldest plan in flight. `out` is cleared first.
  Committed commit(std::span<const std::byte> result, StepOutput& out);

  /// What the CACHE MANAGER is to do now: releases, then forks, then what the next steps need. False
  /// when there is nothing. Call it after every other call; asks once made are not repeated before they
  /// are answered, and a refused one only after something was released. `asks` is cleared first.
  bool take_asks(CacheAsks& asks);

  /// Answers to asks; those of another epoch are dropped.
  void granted(const CacheGrants& grants);

  std::int32_t running() const { return static_cast<std::int32_t>(running_.size()); }
  std::int32_t waiting() const { return queue_.size(); }
  std::int32_t plans_in_flight() const { return static_cast<std::int32_t>(in_flight_); }
  /// True when no sequence is known, not even an ending one.
  bool idle() const { return table_.size() == 0; }
  const SchedulerTotals& totals() const { return totals_; }

 private:
  /// One row of a plan in flight, as commit() needs it.
  struct PlannedRow {
    std::uint32_t sequence = 0;
    SlotRef slot{};
    std::int32_t begin = 0;  ///< positions [begin, end) are run
    std::int32_t end = 0;
    bool samples = false;
  };
  struct PlannedStep {
    std::uint64_t step = 0;
    std::vector<PlannedRow> rows;
  };
  struct Release {
    RequestKey key{};
    std::uint32_t group = kNoGroup;
  };

  // scheduler.cpp: the way in, the way out, the worker's coming and going
  Status check(const SequenceSpec& spec, const SequenceSpec& prompt) const;
  void enqueue(SequenceSpec& spec, std::vector<TokenId> prompt, std::uint32_t group);
  void end(std::uint32_t sequence, SequenceState how);
  void retire(std::uint32_t sequence);
  void rewind(ScheduledSequence& sequence);
  void forget(std::uint32_t sequence);
  void fail(std::uint32_t sequence, const std::string& why, StepOutput& out);

  // scheduler_plan.cpp
  void plan_row(std::uint32_t sequence, PlannedStep& step, std::int64_t now_ns);

  // scheduler_commit.cpp
  Committed judge(std::span<const std::byte> bytes, wire::RecordView& view) const;
  bool agrees(const wire::RecordView& view, const wire::StepResult& result, const PlannedStep& step) const;
  void sort_scores(std::span<const wire::TokenLogprobs> scores, const PlannedStep& step);
  void commit_row(std::size_t index, const PlannedRow& row, const wire::ResultRow* result,
                  const wire::RecordView& view, const wire::StepResult& record, StepOutput& out);
  void pass_scores(ScheduledSequence& sequence, std::uint32_t score, const wire::RecordView& view,
                   const wire::StepResult& record, StepOutput& out);
  SequenceTokens& report(ScheduledSequence& sequence, StepOutput& out);
  Finish take_token(ScheduledSequence& sequence, TokenId token);

  // scheduler_leases.cpp
  std::int32_t blocks_for(std::int32_t positions) const;
  bool may_ask(const ScheduledSequence& sequence) const;
  void mark_asked(ScheduledSequence& sequence);
  void make_room();
  void ask_growth(CacheAsks& asks);
  void ask_admissions(CacheAsks& asks, std::int64_t backlog);
  void ask_releases(CacheAsks& asks, bool donors);
  void answered(std::uint32_t sequence, const Grant& grant, std::span<const BlockId> blocks);
  void admit(std::uint32_t sequence);

  const config::SchedulerOptions options_;

  // Of the attached worker; void while epoch_ is 0.
  std::uint32_t epoch_ = 0;
  std::int32_t budget_ = 0;      ///< tokens of a step
  std::int32_t max_length_ = 0;  ///< tokens of a sequence
  std::int32_t block_tokens_ = 1;
  std::int32_t total_blocks_ = 0;
  std::int32_t vocab_size_ = 0;
  std::int32_t max_logprobs_ = 0;
  std::uint64_t last_command_ = 0;  ///< the newest cache command heard of

  PlanBuilder builder_;
  ScheduledSequences table_;
  SlotTable slots_;
  WaitingQueue queue_;
  ChoiceGroups groups_;
  std::vector<std::uint32_t> running_;  ///< in order of admission
  std::vector<SlotRef> finished_;       ///< to be told to the worker
  std::vector<Release> releases_;       ///< to be told to the cache manager
  std::vector<PlannedStep> steps_;      ///< a ring: plans in flight, the oldest at first_step_
  std::size_t first_step_ = 0;
  std::size_t in_flight_ = 0;
  std::uint64_t next_step_ = 1;
  std::uint64_t arrivals_ = 0;
  std::uint64_t released_ = 0;        ///< leases given up so far: a refused ask waits for the next
  std::int32_t ending_ = 0;           ///< sequences in states ending and putting_back
  std::int32_t admissions_open_ = 0;  ///< asks for admission that are not answered
  std::int32_t preempted_in_step_ = 0;
  std::vector<std::uint32_t> score_next_;  ///< scratch: logprobs of a result, listed by row
  std::vector<std::uint32_t> score_head_;
  std::vector<std::uint32_t> rows_of_slots_;
  SchedulerTotals totals_;
};

}  // namespace troupe
