#pragma once
// Base of executors whose device has no queue of its own: submit() checks and queues, poll() runs the oldest
// record on the calling thread.
#include <span>
#include <string>
#include <vector>

#include "kernels/copy_blocks.h"
#include "model/cuda/sequence_table.h"
#include "model/cuda/work_queue.h"
#include "model/executor.h"
#include "model/plan_check.h"
#include "model/result_writer.h"

namespace troupe::model {

/// Plans beyond capacity().max_steps_in_flight and cache commands beyond kMaxCommandsQueued are
/// refused with Code::overloaded. poll() never waits: it runs the work itself.
class QueuedExecutor : public Executor {
 public:
  static constexpr std::size_t kMaxCommandsQueued = 256;

  explicit QueuedExecutor(const wire::Capacity& capacity);

  wire::Capacity capacity() const final { return capacity_; }
  Status submit(const wire::RecordView& record) final;
  Result<bool> poll(std::vector<std::byte>& out, TimePoint deadline) final;
  void reset() final;

 protected:
  /// Runs the batch and answers samples[i] for batch.samples[i], scores[i] for batch.scores[i].
  virtual void run(const StepBatch& batch, std::span<kernels::SampleResult> samples,
                   std::span<kernels::SampleResult> scores) = 0;
  virtual void copy(std::span<const kernels::BlockPair> pairs) = 0;

 private:
  void run_step(std::vector<std::byte>& out);
  void run_command(std::vector<std::byte>& out);
  // True if the oldest command runs next: it came first, or the oldest plan waits for it.
  bool command_is_next() const;
  bool plan_is_ready() const;

  const wire::Capacity capacity_;
  PlanCheck check_;
  WorkerSequences table_;
  WorkQueue plans_;
  WorkQueue commands_;
  std::uint64_t arrivals_ = 0;
  std::uint64_t commands_done_ = 0;
  StepBatch batch_;
  std::vector<kernels::SampleResult> samples_;
  std::vector<kernels::SampleResult> scores_;
  std::vector<kernels::BlockPair> pairs_;
  ResultWriter writer_;
};

}  // namespace troupe::model
