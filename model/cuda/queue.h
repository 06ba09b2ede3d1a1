#pragma once
// An Executor over a GPU's own queue.
//
// submit() checks a plan, packs it and starts it; while it runs the next one is taken the same way. The host
// knows of a sequence's tokens only what the engine has sent: what was sampled stays on the GPU, where the
// next step finds it. A plan that waits for a cache command which has not come yet is kept until it has.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/cuda_event.h"
#include "gpu/reserved_memory.h"
#include "model/cuda/sequence_table.h"
#include "model/cuda/steps.h"
#include "model/cuda/work_queue.h"
#include "model/executor.h"
#include "model/plan_check.h"
#include "model/result_writer.h"

namespace troupe::model {

/// A loaded model on a GPU. In the order of construction.
struct CudaModel {
  std::unique_ptr<Cuda> device;
  std::unique_ptr<ReservedMemory> kv;
  std::unique_ptr<Decoder<Cuda>> decoder;
  std::unique_ptr<CudaSteps> steps;
  std::vector<std::string> slow_ways;  ///< see Executor
};

/// A step that takes longer than `patience` counts as never ending: poll() gives internal then. After any
/// internal error the device is of no further use: its memory is left to the end of the process, so that the
/// destructor waits for nothing.
class CudaQueue final : public Executor {
 public:
  static constexpr std::size_t kMaxCommandsQueued = 256;

  CudaQueue(const wire::Capacity& capacity, CudaModel model, Duration patience);
  ~CudaQueue() override;

  wire::Capacity capacity() const override { return capacity_; }
  std::string device() const override { return model_.device->describe(); }
  std::vector<std::string> slow_ways() const override { return model_.slow_ways; }
  Status submit(const wire::RecordView& record) override;
  Result<bool> poll(std::vector<std::byte>& out, TimePoint deadline) override;
  void reset() override;

 private:
  // What the GPU was given, in that order.
  struct Work {
    bool is_step = false;
    std::uint64_t number = 0;    // of the plan or the command
    std::uint64_t launched = 0;  // a step's number among all that CudaSteps has launched
    CudaEvent end;
  };
  // What the result of a step is made of.
  struct Flight {
    StepBatch batch;
    int scores = 0;
  };

  Status take(const wire::RecordView& record);
  Status take(const wire::RecordView& record, const wire::StepPlan& plan);
  Status take(const wire::RecordView& record, const wire::CacheCommand& command);
  void launch(const wire::RecordView& record, const wire::StepPlan& plan);
  void launch_waiting();
  Work& add_work();
  bool over(const Work& work, bool ask_driver) const;
  void write(const Work& work, std::vector<std::byte>& out);
  std::int64_t host_ns(std::uint64_t gpu_ns, std::uint64_t finished_gpu_ns);
  Flight& flight(std::uint64_t launched) { return flights_[launched % flights_.size()]; }

  const wire::Capacity capacity_;
  const Duration patience_;
  CudaModel model_;
  PlanCheck check_;
  WorkerSequences table_;
  StepPacker packer_;
  WorkQueue waiting_;  // plans whose command is still to come, and those behind them
  std::vector<Work> work_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t steps_out_ = 0;
  std::uint64_t commands_ = 0;  // given to the GPU so far
  std::vector<Flight> flights_;
  std::vector<kernels::SampleResult> samples_;
  std::vector<kernels::BlockPair> pairs_;
  ResultWriter writer_;
  std::uint64_t looks_ = 0;  // at outcomes, of all polls together
  TimePoint progress_{};     // when something last ended, or began on an idle GPU
  std::int64_t clock_offset_ns_ = 0;
  std::int64_t clock_read_ns_ = 0;  // when that was last adjusted; 0 never
  Status broken_;
};

}  // namespace troupe::model
