#pragma once
// The plans that the worker has not answered yet.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/scheduler/step_budget.h"
#include "base/ids.h"
#include "ipc/wire.h"

namespace troupe {

/// One row of a plan in flight, as the commit of its result needs it.
struct PlannedRow {
  std::uint32_t sequence = 0;
  SlotRef slot{};
  std::int32_t begin = 0;  ///< positions [begin, end) are run
  std::int32_t end = 0;
  bool samples = false;
  bool from_last = false;     ///< `begin` and `end` are upper bounds: it yields up to end - begin tokens
  std::int32_t proposes = 0;  ///< draft tokens that its result may say
};

struct PlannedStep {
  std::vector<PlannedRow> rows;
  StepWork work;
  std::int32_t prompt_positions = 0;  ///< of rows of prompts with several positions
  std::int32_t decodes = 0;           ///< rows with from_last,
  std::int32_t drafts = 0;            ///< and the draft tokens that each might verify
  double predicted_s = 0;
  bool background = false;              ///< it may have rows of background sequences
  bool follows_piece = false;           ///< planned behind a step in flight while an item was being encoded
  std::int32_t freed_media_tokens = 0;  ///< of encoder output that the plan has the worker give up
};

/// A ring of as many steps as the worker takes at once. Steps are numbered from 1 for each worker and
/// answered in order. Rows keep their memory from step to step.
class StepsInFlight {
 public:
  /// A new worker; nothing is in flight. `most` is at least 1.
  void attach(std::int32_t most);
  /// The worker is lost: its plans are void.
  void clear() { size_ = 0; }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == steps_.size(); }

  /// An empty step to be planned, in flight only after push(). Requires !full().
  PlannedStep& begin();
  /// The step of begin() is in flight. Returns its number.
  std::uint64_t push();
  /// Number of the step that begin() prepares.
  std::uint64_t next_number() const { return next_; }

  /// Number and rows of the step whose result is due; the latter require !empty().
  std::uint64_t oldest_number() const { return next_ - size_; }
  const PlannedStep& oldest() const { return steps_[first_]; }
  const PlannedStep& newest() const { return steps_[(first_ + size_ - 1) % steps_.size()]; }
  /// The oldest step has come back. It stays valid until the next begin(). Requires !empty().
  const PlannedStep& pop();

  /// True if no step in flight has a row of another sequence.
  bool has_only(std::uint32_t sequence) const;

 private:
  std::vector<PlannedStep> steps_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
  std::uint64_t next_ = 1;
};

}  // namespace troupe
