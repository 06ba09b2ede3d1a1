#include "model/cpu_executor.h"

#include <utility>

#include "gpu/cpu.h"
#include "model/decoder.h"
#include "model/queued_executor.h"
#include "model/weights.h"

namespace troupe::model {
namespace {

class CpuExecutor final : public QueuedExecutor {
 public:
  CpuExecutor(const wire::Capacity& capacity, std::unique_ptr<Cpu> device,
              std::unique_ptr<Decoder<Cpu>> decoder, std::unique_ptr<SwapCopier> swap)
      : QueuedExecutor(capacity, swap.get()),
        device_(std::move(device)),
        decoder_(std::move(decoder)),
        swap_(std::move(swap)) {
    const kernels::KvCache& kv = decoder_->kv();
    if (swap_) swap_->set_memory(static_cast<std::byte*>(kv.data), kv.block_bytes());
  }

  std::string device() const override { return device_->describe(); }
  void count_progress(std::atomic<std::int64_t>& word) override { device_->pool().count_progress(&word); }

 private:
  void run(const StepBatch& batch, std::span<kernels::SampleResult> scores) override {
    decoder_->begin(batch, scores);
  }
  void sample(const StepBatch& batch, std::span<kernels::SampleResult> samples) override {
    decoder_->finish(batch, samples);
  }
  void copy(std::span<const kernels::BlockPair> pairs) override { decoder_->copy_blocks(pairs); }

  std::unique_ptr<Cpu> device_;  // outlives the decoder's memory
  std::unique_ptr<Decoder<Cpu>> decoder_;
  std::unique_ptr<SwapCopier> swap_;  // last: its thread uses the decoder's memory
};

}  // namespace

Result<std::unique_ptr<Executor>> make_cpu_executor(const ModelFiles& files, const config::Options& options,
                                                    const wire::Capacity& capacity,
                                                    const LoadProgress& progress) {
  Result<std::unique_ptr<SwapStore>> store =
      make_swap_store(options.cache, capacity.swap_blocks, kv_shape(files.spec, files.formats).block_bytes());
  if (!store) return store.status();
  std::unique_ptr<SwapCopier> swap;
  if (*store) swap = std::make_unique<SwapCopier>(std::move(*store));  // before the device pins this thread
  auto device = std::make_unique<Cpu>(CpuOptions{.threads = options.device.cpu_threads});
  Result<Weights<Cpu>> weights =
      files.checkpoint ? Weights<Cpu>::load(*device, files.spec, files.formats, files.map, progress)
                       : Weights<Cpu>::dummy(*device, files.spec, files.formats,
                                             static_cast<std::uint64_t>(options.model.seed));
  if (!weights) return weights.status();
  Result<std::unique_ptr<Decoder<Cpu>>> decoder =
      Decoder<Cpu>::make(*device, files.spec, files.formats, std::move(*weights),
                         {.rows = capacity.max_tokens_per_step,
                          .sequences = capacity.max_slots,
                          .positions = capacity.max_model_len,
                          .kv_blocks = capacity.kv_blocks,
                          .kv_format = files.formats.kv});
  if (!decoder) return decoder.status();
  return std::unique_ptr<Executor>(
      std::make_unique<CpuExecutor>(capacity, std::move(device), std::move(*decoder), std::move(swap)));
}

}  // namespace troupe::model
