#include "model/queued_executor.h"

#include "base/check.h"

namespace troupe::model {
namespace {

template <class R>
const R& front(const WorkQueue& queue, wire::RecordView& record) {
  TROUPE_CHECK(wire::RecordView::open(queue.front(), record));
  const R* found = record.as<R>();
  TROUPE_CHECK(found != nullptr);
  return *found;
}

}  // namespace

QueuedExecutor::QueuedExecutor(const wire::Capacity& capacity)
    : capacity_(capacity),
      check_(capacity),
      table_(capacity.max_slots),
      plans_(static_cast<std::size_t>(capacity.max_steps_in_flight)),
      commands_(kMaxCommandsQueued) {}

Status QueuedExecutor::submit(const wire::RecordView& record) {
  if (const auto* plan = record.as<wire::StepPlan>()) {
    if (plans_.full()) {
      return failure(Code::overloaded, std::to_string(plans_.size()) + " steps are in flight already");
    }
    if (Status s = check_.admit(record, *plan); !s.ok()) return s;
    plans_.push(record.bytes(), arrivals_++);
    return {};
  }
  if (const auto* command = record.as<wire::CacheCommand>()) {
    if (commands_.full()) {
      return failure(Code::overloaded, std::to_string(commands_.size()) + " cache commands wait already");
    }
    if (Status s = check_.admit(record, *command); !s.ok()) return s;
    commands_.push(record.bytes(), arrivals_++);
    return {};
  }
  return invalid("a record of kind " + std::to_string(static_cast<unsigned>(record.header().kind)) +
                 " is no work for an executor, or too short for its kind");
}

bool QueuedExecutor::plan_is_ready() const {
  if (plans_.empty()) return false;
  wire::RecordView record;
  return front<wire::StepPlan>(plans_, record).after_cache_command <= commands_done_;
}

bool QueuedExecutor::command_is_next() const {
  return !commands_.empty() && (!plan_is_ready() || commands_.arrival() < plans_.arrival());
}

Result<bool> QueuedExecutor::poll(std::vector<std::byte>& out, TimePoint) {
  if (command_is_next()) {
    run_command(out);
  } else if (plan_is_ready()) {
    run_step(out);
  } else {
    return false;
  }
  return true;
}

void QueuedExecutor::run_command(std::vector<std::byte>& out) {
  wire::RecordView record;
  const auto& command = front<wire::CacheCommand>(commands_, record);
  pairs_.clear();
  for (const wire::BlockCopy& c : record.array(command.copies)) pairs_.push_back({c.from, c.to});
  copy(pairs_);
  commands_done_ = command.id;
  writer_.cache_done(command.id, out);
  commands_.pop();
}

void QueuedExecutor::run_step(std::vector<std::byte>& out) {
  const std::int64_t started_ns = now_ns();
  wire::RecordView record;
  const auto& plan = front<wire::StepPlan>(plans_, record);
  table_.apply(record, plan, batch_);
  samples_.resize(batch_.samples.size());
  scores_.resize(batch_.scores.size());
  run(batch_, samples_, scores_);
  table_.commit(batch_, samples_);
  writer_.step(plan.step, batch_, samples_, scores_, started_ns, now_ns(), out);
  plans_.pop();
}

void QueuedExecutor::reset() {
  check_.reset();
  table_.reset();
  plans_.clear();
  commands_.clear();
  commands_done_ = 0;
}

}  // namespace troupe::model
