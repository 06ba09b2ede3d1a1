#pragma once
// An Executor over a GPU's own queue.
//
// submit() checks a plan, packs it and starts it, also while an earlier step runs. The host knows only the
// tokens that the engine has sent. Sampled tokens stay on the GPU, where the next step reads them. A plan
// that names a cache command which has not arrived yet waits for it, and so does a plan behind a step whose
// gated rows lack masks: it is launched when that step's sampling has been. Copies from and to the swap
// space, and from other instances, run on streams of their own; a step that depends on one waits for it on
// the GPU, by an event. Copies from other machines wait for the network, and those by NCCL for the other GPU:
// plans and commands that depend on one wait here. Images and videos are encoded between steps (encoder.h),
// and while there are none; a plan whose rows need an item that is not encoded waits here.
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "gpu/cuda_event.h"
#include "gpu/reserved_memory.h"
#include "model/cuda/encoder.h"
#include "model/cuda/pair_givers.h"
#include "model/cuda/remote_copies.h"
#include "model/cuda/sequence_table.h"
#include "model/cuda/step_limits.h"
#include "model/cuda/steps.h"
#include "model/cuda/swap.h"
#include "model/cuda/work_queue.h"
#include "model/executor.h"
#include "model/plan_check.h"
#include "model/result_writer.h"
#include "model/step_gates.h"
#include "model/vision/media_check.h"

namespace troupe::model {

/// A loaded model on a GPU. The members are constructed in this order.
struct CudaModel {
  std::unique_ptr<Cuda> device;
  std::unique_ptr<Collective<Cuda>> ranks;  ///< null: alone
  std::unique_ptr<ReservedMemory> kv;
  std::unique_ptr<Decoder<Cuda>> decoder;
  std::unique_ptr<CudaSteps> steps;
  OwnedFd shared_kv;                         ///< by which other instances read `kv`; none: they do not
  std::unique_ptr<CudaSwap> swap;            ///< null: no swap space, and no other instances to read from
  std::unique_ptr<CudaRemoteCopies> remote;  ///< null: no KV blocks from other instances
  std::unique_ptr<CudaPairGivers> givers;    ///< null: it has given none by NCCL
  std::unique_ptr<CudaEncoder> encoder;      ///< null: the model takes text alone
  std::vector<std::string> slow_ways;        ///< see Executor
};

/// A cache command that takes longer than `patience`, or a step that takes longer than StepLimits allow,
/// counts as hanging, but not while it waits for masks. Steps of several ranks are allowed at least
/// `patience`. poll() then returns internal; reset() returns after `patience`, and submit() and poll() return
/// internal from then on. After any internal error the device is of no further use: the destructor waits for
/// nothing and leaves the device's memory to the end of the process.
class CudaQueue final : public Executor {
 public:
  static constexpr std::size_t kMaxCommandsQueued = 256;

  CudaQueue(const wire::Capacity& capacity, CudaModel model, Duration patience);
  ~CudaQueue() override;

  wire::Capacity capacity() const override { return capacity_; }
  std::string device() const override { return model_.device->describe(); }
  std::vector<std::string> slow_ways() const override { return model_.slow_ways; }
  std::string load_note() const override { return model_.decoder->load_note(); }
  Result<bool> prepare() override;
  Status submit(const wire::RecordView& record) override;
  Status encode(const wire::EncodeMedia& command, std::span<const std::byte> patches) override;
  void skip_encoding(const wire::EncodeMedia& command) override;
  Result<bool> poll(std::vector<std::byte>& out, TimePoint deadline) override;
  int kv_memory_fd() const override { return model_.shared_kv.get(); }
  Status attach_peer(std::uint32_t peer, const PeerKvMemory& memory) override;
  void detach_peer(std::uint32_t peer, int rank) override;
  Result<bool> attach_pair(std::uint32_t peer, const PeerKvMemory& memory, OwnedFd socket,
                           TellPair tell) override;
  void give_pair(OwnedFd socket, std::uint64_t life) override;
  Status attach_remote_peer(std::uint32_t peer, FetchBlocks fetch, std::span<std::byte> memory) override;
  Result<ReadBlock> block_reader(std::span<std::byte> memory) override;
  void reset(std::uint32_t epoch) override;

 private:
  static constexpr const char* kCopyBeside =
      "a copy from another instance, or from or to the swap space,";  // for overdue()

  // A step or cache command on the GPU's stream.
  struct Work {
    bool is_step = false;
    std::uint64_t number = 0;  // of the plan or the command
    StepKind kind = StepKind::prompt;
    std::uint64_t launched = 0;   // a step's number among all that CudaSteps has launched
    std::int64_t started_ns = 0;  // of a command: when it was given to the GPU
    CudaEvent end;
  };
  // What the host keeps of a step in flight, for its result.
  struct Flight {
    StepBatch batch;
    int scores = 0;
    bool copies = false;                 // scores, tops or embeddings
    std::vector<MediaCheck::Used> used;  // items whose last rows it runs
  };

  Status submit_record(const wire::RecordView& record);
  Status submit_plan(const wire::RecordView& record, const wire::StepPlan& plan);
  Status submit_masks(const wire::RecordView& record, const wire::StepMasks& masks);
  Status submit_command(const wire::RecordView& record, const wire::CacheCommand& command);
  bool is_remote(const wire::CacheCommand& command) const;
  // False while the command depends on a copy from another machine.
  bool may_begin(const wire::CacheCommand& command) const;
  void begin(const wire::RecordView& record, const wire::CacheCommand& command);
  void begin_late_commands();
  void copy(const wire::RecordView& record, const wire::CacheCommand& command);
  void swap(const wire::RecordView& record, const wire::CacheCommand& command);
  void launch(const wire::RecordView& record, const wire::StepPlan& plan);
  // What encoding has to do with a plan that is launched now.
  void launch_media(const wire::RecordView& record, const wire::StepPlan& plan, Flight& flight);
  // True if nothing that the plan needs is still to come: a cache command or an item.
  bool may_run(const wire::RecordView& record, const wire::StepPlan& plan) const;
  void launch_waiting();
  // Starts the rest of the held step, if there is one and it has all masks.
  void end_held();
  // Behind the held step's last launch.
  void let_go();
  bool is_held(const Work& work) const { return held_ != 0 && work.is_step && work.number == held_; }
  Work& add_work();
  // True if the work is complete. `ask_driver`: asks the driver too, which throws if the work has failed.
  bool finished(const Work& work, bool ask_driver) const;
  // Throws CudaError if that takes longer.
  void wait_for_all(Duration patience);
  CudaError overdue(const std::string& what, Duration limit) const;
  static std::string name(const Work& work);
  // Writes the end of something that runs beside the steps, if anything has ended.
  bool take_beside(std::vector<std::byte>& out);
  bool take_swapped(std::vector<std::byte>& out);
  bool take_fetched(std::vector<std::byte>& out);
  // Gives an idle GPU the next pieces, and writes the end of an encoding, if one has ended.
  bool take_encoded(std::vector<std::byte>& out);
  void write(const Work& work, std::vector<std::byte>& out);
  void resolve(Flight& flight, std::span<const kernels::Yield> yields);
  std::int64_t host_ns(std::uint64_t gpu_ns, std::uint64_t finished_gpu_ns);
  Flight& flight(std::uint64_t launched) { return flights_[launched % flights_.size()]; }

  const wire::Capacity capacity_;
  const Duration patience_;
  StepLimits limits_;
  CudaModel model_;
  PlanCheck check_;
  MediaCheck media_;
  StepGates gates_;
  WorkerSequences table_;
  StepPacker packer_;
  std::uint64_t held_ = 0;  // the last step launched, if its rest has not been; 0: none
  WorkQueue waiting_;  // plans behind a held step or whose cache command has not arrived, and those behind
  std::vector<Work> work_;  // a ring: count_ entries from first_, oldest first
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t steps_out_ = 0;
  std::uint64_t commands_ = 0;  // id of the last cache command given to the GPU, whichever stream
  // Cache commands that depend on a copy from another machine, and those behind.
  std::deque<std::vector<std::byte>> late_commands_;
  std::vector<Flight> flights_;
  std::vector<kernels::SampleResult> samples_;
  std::vector<kernels::Yield> yields_;
  std::vector<float> embeddings_;
  std::vector<kernels::BlockPair> pairs_;
  ResultWriter writer_;
  std::uint64_t checks_ = 0;  // of whether work has finished, in all calls of poll()
  TimePoint progress_{};      // when work last ended, or began on an idle GPU
  std::int64_t clock_offset_ns_ = 0;
  std::int64_t clock_read_ns_ = 0;  // when the offset was last adjusted; 0: never
  Status broken_;
};

}  // namespace troupe::model
