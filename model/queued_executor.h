#pragma once
// Base of executors whose device has no queue of its own: submit() checks and queues, poll() runs the oldest
// record on the calling thread.
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/copy_blocks.h"
#include "model/cuda/sequence_table.h"
#include "model/cuda/work_queue.h"
#include "model/executor.h"
#include "model/plan_check.h"
#include "model/result_writer.h"
#include "model/step_gates.h"
#include "model/swap/ended_commands.h"
#include "model/swap/swap_copier.h"
#include "model/vision/media_check.h"

namespace troupe::model {

/// Plans beyond capacity().max_steps_in_flight and cache commands beyond kMaxCommandsQueued are
/// refused with Code::overloaded. poll() runs the work itself; it waits only when nothing but copies from or
/// to the swap space is left to run. A step's layers run in one call and, if it waits for masks, its sampling
/// in a later one; copies within the KV memory may run in between. Images and videos are encoded in pieces:
/// one after each step, and on while no plan can run.
class QueuedExecutor : public Executor {
 public:
  static constexpr std::size_t kMaxCommandsQueued = 256;

  /// `swap`: copies from and to the swap space, and from other instances; outlives the last call. Null: there
  /// are no such copies, and capacity.swap_blocks is 0. `vision`: of a model that takes images and videos
  /// with frames of at most `frame_patches`. `drafter`: null when capacity.max_drafts is 0.
  explicit QueuedExecutor(const wire::Capacity& capacity, SwapCopier* swap = nullptr,
                          const std::optional<VisionSpec>& vision = {}, int frame_patches = 0,
                          std::unique_ptr<Drafter> drafter = nullptr);

  wire::Capacity capacity() const final { return capacity_; }
  Status submit(const wire::RecordView& record) final;
  Result<bool> poll(std::vector<std::byte>& out, TimePoint deadline) final;
  bool waits_for_record() const final;
  Status encode(const wire::EncodeMedia& command, std::span<const std::byte> patches) final;
  void reset(std::uint32_t epoch) final;

 protected:
  /// Runs the batch up to its sampling and answers scores[i] for batch.scores[i], and the batch's tops.
  virtual void run(const StepBatch& batch, std::span<kernels::SampleResult> scores,
                   std::span<kernels::TopLogprob> tops) = 0;
  /// Samples for the batch that ran last, which has its masks, and answers samples[i] for batch.samples[i].
  virtual void sample(const StepBatch& batch, std::span<kernels::SampleResult> samples) = 0;
  /// With capacity.embedding_width: the embeddings of batch.embeds, of the batch that ran last, one behind
  /// the other.
  virtual void embeddings(const StepBatch&, std::span<float>) {}
  virtual void copy(std::span<const kernels::BlockPair> pairs) = 0;
  /// Of a model that takes images and videos. Begins to encode an item, whose grid and patches have been
  /// checked; the patches stay until advance_encoding() has returned false. False: its embeddings are there
  /// already.
  virtual Result<bool> begin_encoding(const wire::EncodeMedia&, const MediaItem&,
                                      std::span<const std::uint8_t>) {
    return false;
  }
  /// Runs a piece of it; false if that was the last.
  virtual bool advance_encoding() { return false; }
  /// Sets EmbeddedRows::rows, all of which are there.
  virtual void find_embeddings(std::span<EmbeddedRows>) const {}
  /// The last row of an item has run.
  virtual void embeddings_used(SlotRef, int) {}
  /// Forgets the embeddings of a sequence, and of all.
  virtual void drop_embeddings(SlotRef) {}
  virtual void drop_embeddings() {}
  /// Of a rank among others: true if the step that runs cannot end, because another rank has died or does not
  /// come. Nothing runs any more until reset(); poll() answers late(), if it is not ok, and else nothing.
  virtual bool abandoned() const { return false; }
  virtual Status late() const { return {}; }
  /// reset() has been called: begin again with the other ranks.
  virtual void begin_epoch(std::uint32_t epoch) { static_cast<void>(epoch); }

 private:
  void begin_step();
  Result<bool> abandoned_step(TimePoint deadline);
  void end_step(std::vector<std::byte>& out);
  void run_command(std::vector<std::byte>& out);
  // Runs a piece of the oldest encoding; an error of the device is a Status, true that a record is in `out`.
  Result<bool> run_encoding(std::vector<std::byte>& out);
  // True if the items that the plan's rows cover are encoded.
  bool is_encoded(const wire::RecordView& record, const wire::StepPlan& plan) const;
  // True if the oldest copy within the KV memory runs next: it came first, or the oldest plan waits.
  bool command_is_next() const;
  // True if the oldest plan's layers may run, or, if they have, its sampling.
  bool plan_is_ready() const;
  // True when all cache commands up to `id` have ended.
  bool ended_through(std::uint64_t id) const;

  struct Encoding {
    wire::EncodeMedia command{};
    MediaItem item{};
    std::span<const std::byte> patches;
    bool dropped = false;  // a plan that finishes its sequence has run
  };

  const wire::Capacity capacity_;
  PlanCheck check_;
  StepGates gates_;
  WorkerSequences table_;
  WorkQueue plans_;
  WorkQueue commands_;  // copies within the KV memory
  MediaCheck media_;
  std::deque<Encoding> encodings_;
  bool encoding_has_begun_ = false;
  bool encoding_is_cached_ = false;  // with it: there is nothing to do
  bool encodes_next_ = false;        // a step has run since the last piece
  std::int64_t encoding_started_ns_ = 0;
  std::uint64_t arrivals_ = 0;
  SwapCopier* const swap_;
  EndedCommands ended_;  // without a swap_, which knows of all commands
  bool begun_ = false;   // the layers of the oldest plan have run, and batch_ is its batch
  std::int64_t started_ns_ = 0;
  StepBatch batch_;
  std::vector<kernels::SampleResult> samples_;
  std::vector<kernels::SampleResult> scores_;
  std::vector<kernels::TopLogprob> tops_;
  std::vector<float> embeddings_;
  std::vector<kernels::BlockPair> pairs_;
  ResultWriter writer_;
};

}  // namespace troupe::model
