// The cache commands of a CudaQueue.
#include <utility>

#include "base/check.h"
#include "model/cuda/queue.h"

namespace troupe::model {

Status CudaQueue::submit_command(const wire::RecordView& record, const wire::CacheCommand& command) {
  const bool copies = command.op == wire::CacheOp::copy_blocks;
  const bool remote = is_remote(command);
  const std::size_t out = late_commands_.size() + (remote                   ? model_.remote->open()
                                                   : copies || !model_.swap ? count_ - steps_out_
                                                                            : model_.swap->open());
  if (out >= (copies ? kMaxCommandsQueued : CudaSwap::kMaxOpen)) {
    return failure(Code::overloaded, std::to_string(out) + " cache commands wait already");
  }
  if (command.op == wire::CacheOp::peer_in && !model_.swap)
    return invalid("a copy from an instance that was not attached");
  if (Status s = check_.admit(record, command); !s.ok()) return s;
  if (late_commands_.empty() && may_begin(command)) {
    begin(record, command);
  } else {
    late_commands_.emplace_back(record.bytes().begin(), record.bytes().end());
  }
  launch_waiting();
  return {};
}

bool CudaQueue::is_remote(const wire::CacheCommand& command) const {
  return command.op == wire::CacheOp::peer_in && model_.remote && model_.remote->has(command.peer);
}

// One from another machine waits by itself for what it comes after.
bool CudaQueue::may_begin(const wire::CacheCommand& command) const {
  return !model_.remote || is_remote(command) || model_.remote->through(command.after);
}

void CudaQueue::begin(const wire::RecordView& record, const wire::CacheCommand& command) {
  if (is_remote(command)) {
    model_.remote->submit(command, record.array(command.copies));
  } else if (command.op == wire::CacheOp::copy_blocks) {
    copy(record, command);
  } else {
    swap(record, command);
  }
  commands_ = command.id;
}

void CudaQueue::begin_late_commands() {
  while (!late_commands_.empty()) {
    wire::RecordView record;
    TROUPE_CHECK(wire::RecordView::open(late_commands_.front(), record));
    const auto& command = *record.as<wire::CacheCommand>();
    if (!may_begin(command)) return;
    begin(record, command);
    late_commands_.pop_front();
  }
}

void CudaQueue::copy(const wire::RecordView& record, const wire::CacheCommand& command) {
  pairs_.clear();
  for (const wire::BlockCopy& c : record.array(command.copies)) pairs_.push_back({c.from, c.to});
  if (model_.swap) model_.swap->delay(model_.device->stream(), command.after);
  model_.decoder->copy_blocks(pairs_);
  Work& work = add_work();
  work.is_step = false;
  work.number = command.id;
  work.started_ns = now_ns();
  work.end.record(*model_.device);
}

// What such a command reads and writes here was last touched by steps whose results the engine has, or by
// commands that it comes after.
void CudaQueue::swap(const wire::RecordView& record, const wire::CacheCommand& command) {
  CUstream_st* const stream = model_.swap->stream(command.op);
  model_.swap->delay(stream, command.after);
  for (std::size_t i = 0; i < count_; ++i) {
    const Work& work = work_[(first_ + i) % work_.size()];
    if (!work.is_step && work.number <= command.after) work.end.delay(stream);
  }
  model_.swap->submit(command, record.array(command.copies));
}

bool CudaQueue::take_swapped(std::vector<std::byte>& out) {
  if (!model_.swap || model_.swap->open() == 0) return false;
  EndedCommand ended;
  if (model_.swap->take_ended(ended)) {
    if (model_.remote) model_.remote->end(ended.id);
    writer_.cache_done(ended, out);
    return true;
  }
  if (Clock::now() - model_.swap->progress() > patience_) throw overdue(kCopyBeside, patience_);
  return false;
}

bool CudaQueue::take_fetched(std::vector<std::byte>& out) {
  EndedCommand ended;
  if (!model_.remote || model_.remote->open() == 0 || !model_.remote->take_ended(ended)) return false;
  writer_.cache_done(ended, out);
  begin_late_commands();
  launch_waiting();
  return true;
}

}  // namespace troupe::model
