#include "model/queued_executor.h"

#include <algorithm>
#include <thread>
#include <utility>

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

QueuedExecutor::QueuedExecutor(const wire::Capacity& capacity, SwapCopier* swap,
                               const std::optional<VisionSpec>& vision, int frame_patches,
                               std::unique_ptr<Drafter> drafter)
    : capacity_(capacity),
      check_(capacity),
      gates_(capacity),
      table_(capacity.max_slots, vision, std::move(drafter)),
      plans_(static_cast<std::size_t>(capacity.max_steps_in_flight)),
      commands_(kMaxCommandsQueued),
      media_(capacity, frame_patches),
      swap_(swap) {
  TROUPE_CHECK(swap != nullptr || capacity.swap_blocks == 0);
}

Status QueuedExecutor::submit(const wire::RecordView& record) {
  if (const auto* plan = record.as<wire::StepPlan>()) {
    if (plans_.full()) {
      return failure(Code::overloaded, std::to_string(plans_.size()) + " steps are in flight already");
    }
    if (Status s = media_.check(record, *plan); !s.ok()) return s;
    if (Status s = check_.admit(record, *plan); !s.ok()) return s;
    media_.admitted(record, *plan);
    gates_.open(record, *plan);
    plans_.push(record.bytes(), arrivals_++);
    return {};
  }
  if (const auto* masks = record.as<wire::StepMasks>()) return gates_.take(record, *masks);
  if (const auto* command = record.as<wire::CacheCommand>()) {
    const bool copies = command->op == wire::CacheOp::copy_blocks;
    const std::size_t waiting = copies || swap_ == nullptr ? commands_.size() : swap_->open();
    if (waiting >= kMaxCommandsQueued) {
      return failure(Code::overloaded, std::to_string(waiting) + " cache commands wait already");
    }
    if (Status s = check_.admit(record, *command); !s.ok()) return s;
    if (!copies && swap_ == nullptr) return invalid("there are no other instances to copy from");
    if (copies) {
      commands_.push(record.bytes(), arrivals_++);
    } else {
      swap_->submit(*command, record.array(command->copies));
    }
    return {};
  }
  if (const auto* media = record.as<wire::SequenceMedia>()) {
    if (Status s = media_.admit(record, *media); !s.ok()) return s;
    table_.announce(media->slot, media_.items(media->slot));
    return {};
  }
  return invalid("a record of kind " + std::to_string(static_cast<unsigned>(record.header().kind)) +
                 " is no work for an executor, or too short for its kind");
}

Status QueuedExecutor::encode(const wire::EncodeMedia& command, std::span<const std::byte> patches) {
  if (Status s = media_.admit(command, patches.size()); !s.ok()) return s;
  encodings_.push_back(
      {command, media_.items(command.slot)[static_cast<std::size_t>(command.item)], patches});
  return {};
}

bool QueuedExecutor::ended_through(std::uint64_t id) const {
  return swap_ != nullptr ? swap_->through(id) : ended_.through(id);
}

bool QueuedExecutor::plan_is_ready() const {
  if (plans_.empty()) return false;
  wire::RecordView record;
  const auto& plan = front<wire::StepPlan>(plans_, record);
  return begun_ ? gates_.ready(plan.step)
                : ended_through(plan.after_cache_command) && is_encoded(record, plan);
}

bool QueuedExecutor::is_encoded(const wire::RecordView& record, const wire::StepPlan& plan) const {
  if (encodings_.empty()) return true;
  const std::span<const wire::PlanRow> rows = record.array(plan.rows);
  return std::ranges::none_of(encodings_, [&](const Encoding& encoding) {
    return covers(rows, encoding.command.slot, encoding.item);
  });
}

bool QueuedExecutor::waits_for_record() const {
  if (abandoned()) return late().ok() && (swap_ == nullptr || swap_->open() == 0);
  return begun_ && !plan_is_ready() && !command_is_next() && encodings_.empty() &&
         (swap_ == nullptr || swap_->open() == 0);
}

bool QueuedExecutor::command_is_next() const {
  if (commands_.empty()) return false;
  wire::RecordView record;
  return ended_through(front<wire::CacheCommand>(commands_, record).after) &&
         (!plan_is_ready() || commands_.arrival() < plans_.arrival());
}

Result<bool> QueuedExecutor::poll(std::vector<std::byte>& out, TimePoint deadline) {
  EndedCommand ended;
  const auto take_ended = [&](TimePoint until) {
    if (swap_ == nullptr || !swap_->take_ended(ended, until)) return false;
    writer_.cache_done(ended, out);
    return true;
  };
  if (take_ended({})) return true;
  if (abandoned()) return abandoned_step(deadline);
  if (!encodings_.empty() && !begun_ && (encodes_next_ || !(command_is_next() || plan_is_ready()))) {
    encodes_next_ = false;
    return run_encoding(out);
  }
  if (command_is_next()) {
    run_command(out);
  } else if (plan_is_ready()) {
    if (!begun_) begin_step();
    if (abandoned()) return abandoned_step({});
    if (!plan_is_ready()) return false;
    end_step(out);
  } else {
    return take_ended(deadline);
  }
  return true;
}

Result<bool> QueuedExecutor::abandoned_step(TimePoint deadline) {
  if (Status s = late(); !s.ok()) return s;
  std::this_thread::sleep_until(std::min(deadline, Clock::now() + std::chrono::milliseconds(1)));
  return false;
}

void QueuedExecutor::run_command(std::vector<std::byte>& out) {
  wire::RecordView record;
  const auto& command = front<wire::CacheCommand>(commands_, record);
  EndedCommand ended{command.id, false, now_ns(), 0};
  pairs_.clear();
  for (const wire::BlockCopy& c : record.array(command.copies)) pairs_.push_back({c.from, c.to});
  copy(pairs_);
  if (swap_ != nullptr) {
    swap_->end(command.id);
  } else {
    ended_.end(command.id);
  }
  ended.finished_ns = now_ns();
  writer_.cache_done(ended, out);
  commands_.pop();
}

Result<bool> QueuedExecutor::run_encoding(std::vector<std::byte>& out) {
  const auto& [command, item, patches, dropped] = encodings_.front();
  if (!dropped && !encoding_has_begun_) {
    encoding_started_ns_ = now_ns();
    const Result<bool> begun = begin_encoding(
        command, item, {reinterpret_cast<const std::uint8_t*>(patches.data()), patches.size()});
    if (!begun) return begun.status();
    encoding_has_begun_ = true;
    encoding_is_cached_ = !*begun;
  }
  if (!dropped && !encoding_is_cached_ && advance_encoding()) return false;
  const std::int64_t now = now_ns();
  writer_.media_done({command.slot, command.item, dropped, encoding_has_begun_ && encoding_is_cached_,
                      encoding_has_begun_ ? encoding_started_ns_ : now, now},
                     out);
  if (dropped) drop_embeddings(command.slot);
  encoding_has_begun_ = false;
  encodings_.pop_front();
  return true;
}

void QueuedExecutor::begin_step() {
  started_ns_ = now_ns();
  wire::RecordView record;
  const auto& plan = front<wire::StepPlan>(plans_, record);
  table_.apply(record, plan, batch_);
  for (const SlotRef slot : record.array(plan.finished)) {
    drop_embeddings(slot);
    for (Encoding& encoding : encodings_) encoding.dropped |= encoding.command.slot == slot;
  }
  find_embeddings(batch_.embedded);
  scores_.resize(batch_.scores.size());
  tops_.resize(static_cast<std::size_t>(batch_.tops));
  run(batch_, scores_, tops_);
  embeddings_.resize(batch_.embeds.size() * static_cast<std::size_t>(capacity_.embedding_width));
  if (!embeddings_.empty() && !abandoned()) embeddings(batch_, embeddings_);
  begun_ = true;
}

void QueuedExecutor::end_step(std::vector<std::byte>& out) {
  wire::RecordView record;
  const auto& plan = front<wire::StepPlan>(plans_, record);
  std::size_t gated = 0;
  for (SamplingOutcome& outcome : batch_.outcomes) {
    if (!outcome.gated) continue;
    const std::size_t row = gated++;
    outcome.masks = gates_.count(plan.step, row);
    outcome.forced = gates_.forced(plan.step, row);
    for (std::int32_t i = 0; outcome.sample >= 0 && i < std::min(outcome.masks, 1 + outcome.drafts); ++i)
      batch_.samples[static_cast<std::size_t>(outcome.sample + i)].mask = gates_.mask(plan.step, row, i);
  }
  samples_.resize(batch_.samples.size());
  sample(batch_, samples_);
  table_.commit(batch_, samples_);
  table_.propose(batch_, samples_);
  for (const MediaCheck::Used& used : media_.used(record, plan)) embeddings_used(used.slot, used.item);
  writer_.step(plan.step, batch_, samples_, scores_, tops_, started_ns_, now_ns(), out, embeddings_);
  gates_.close(plan.step);
  begun_ = false;
  encodes_next_ = true;
  plans_.pop();
}

void QueuedExecutor::reset(std::uint32_t epoch) {
  check_.reset();
  gates_.reset();
  begun_ = false;
  begin_epoch(epoch);
  table_.reset();
  media_.reset();
  encodings_.clear();
  encoding_has_begun_ = false;
  drop_embeddings();
  plans_.clear();
  commands_.clear();
  ended_.clear();
  if (swap_ != nullptr) swap_->reset();
}

}  // namespace troupe::model
