#include "model/cpu_executor.h"

#include <algorithm>
#include <utility>

#include "base/usable_cores.h"
#include "gpu/cpu.h"
#include "model/cpu_isa.h"
#include "model/decoder.h"
#include "model/drafts/make_drafter.h"
#include "model/queued_executor.h"
#include "model/ranks/part.h"
#include "model/ranks/patience.h"
#include "model/sealed_memory.h"
#include "model/sizing.h"
#include "model/swap/swap_sizing.h"
#include "model/vision/encoder_outputs.h"
#include "model/vision/tower.h"
#include "model/weights.h"

namespace troupe::model {
namespace {

using Tower = VisionTower<Cpu>;

class CpuExecutor final : public QueuedExecutor {
 public:
  CpuExecutor(const wire::Capacity& capacity, std::unique_ptr<Cpu> device,
              std::unique_ptr<Collective<Cpu>> ranks, std::unique_ptr<Decoder<Cpu>> decoder,
              std::unique_ptr<SwapCopier> swap, std::unique_ptr<Tower> tower, std::int32_t kept_tokens,
              std::unique_ptr<Drafter> drafter, SealedMemory shared_kv, std::string slow_way)
      : QueuedExecutor(capacity, swap.get(), decoder->spec().vision, tower ? capacity.frame_patches : 0,
                       std::move(drafter)),
        slow_way_(std::move(slow_way)),
        shared_kv_(std::move(shared_kv)),
        device_(std::move(device)),
        ranks_(std::move(ranks)),
        decoder_(std::move(decoder)),
        tower_(std::move(tower)),
        outputs_(*device_, embedding_bytes(), kept_tokens),
        swap_(std::move(swap)) {}

  std::string device() const override { return device_->describe(); }
  std::vector<std::string> slow_ways() const override {
    return slow_way_.empty() ? std::vector<std::string>() : std::vector{slow_way_};
  }
  std::string load_note() const override { return decoder_->load_note(); }
  void count_progress(std::atomic<std::int64_t>& word) override { device_->pool().count_progress(&word); }
  int kv_memory_fd() const override { return shared_kv_.fd(); }
  Status attach_peer(std::uint32_t peer, const PeerKvMemory& memory) override {
    if (!swap_) return Executor::attach_peer(peer, memory);
    return swap_->attach(peer, memory);
  }
  void detach_peer(std::uint32_t peer, int rank) override {
    if (swap_) swap_->detach(peer, rank);
  }
  Status attach_remote_peer(std::uint32_t peer, FetchBlocks fetch, std::span<std::byte> memory) override {
    if (swap_ && swap_->set_remote_peer(peer, fetch)) return {};
    return Executor::attach_remote_peer(peer, std::move(fetch), memory);
  }

 private:
  void run(const StepBatch& batch, std::span<kernels::SampleResult> scores,
           std::span<kernels::TopLogprob> tops) override {
    decoder_->begin(batch, scores, tops);
  }
  void sample(const StepBatch& batch, std::span<kernels::SampleResult> samples) override {
    decoder_->finish(batch, samples);
  }
  void embeddings(const StepBatch& batch, std::span<float> out) override { decoder_->embeddings(batch, out); }
  void copy(std::span<const kernels::BlockPair> pairs) override { decoder_->copy_blocks(pairs); }
  std::size_t embedding_bytes() const {
    return static_cast<std::size_t>(kernels::padded(decoder_->spec().hidden)) * size_of(decoder_->kv().dtype);
  }
  Result<bool> begin_encoding(const wire::EncodeMedia& command, const MediaItem& item,
                              std::span<const std::uint8_t> patches) override {
    const auto place = outputs_.begin(command.slot, command.item, item.grid.tokens(), command.name);
    if (!place) return place.status();
    if (place->filled) return false;
    const Status begun = tower_->begin(item.kind, item.grid, patches, place->rows);
    return begun.ok() ? Result<bool>(true) : Result<bool>(begun);
  }
  bool advance_encoding() override { return tower_->advance(); }
  void find_embeddings(std::span<EmbeddedRows> rows) const override {
    for (EmbeddedRows& some : rows) {
      some.rows = outputs_.rows(some.slot, some.item, some.first);
    }
  }
  void embeddings_used(SlotRef slot, int item) override { outputs_.used(slot, item); }
  void drop_embeddings(SlotRef slot) override { outputs_.drop(slot); }
  void drop_embeddings() override { outputs_.drop_all(); }
  bool abandoned() const override { return ranks_ != nullptr && ranks_->abandoned(); }
  Status late() const override { return ranks_ != nullptr ? ranks_->late() : Status{}; }
  void begin_epoch(std::uint32_t epoch) override {
    if (ranks_ != nullptr) ranks_->begin_epoch(epoch);
  }

  const std::string slow_way_;
  SealedMemory shared_kv_;                  // outlives the decoder; none: the KV memory is its own
  std::unique_ptr<Cpu> device_;             // outlives the decoder's memory
  std::unique_ptr<Collective<Cpu>> ranks_;  // null: alone
  std::unique_ptr<Decoder<Cpu>> decoder_;
  std::unique_ptr<Tower> tower_;  // null: the model takes text alone
  EncoderOutputs<Cpu> outputs_;
  std::unique_ptr<SwapCopier> swap_;  // last: its thread uses the decoder's memory
};

/// The worker's share of the cores, at least one; where there are fewer cores than workers, any.
std::vector<int> cores_of(const RankPlace& place) {
  const std::vector<int> all = physical_cores();
  const auto count = static_cast<int>(all.size());
  const int workers = place.workers();
  if (workers == 1 || count < workers) return {};
  return {all.begin() + count * place.worker() / workers,
          all.begin() + count * (place.worker() + 1) / workers};
}

CpuOptions cpu_of(const config::Options& options, const RankPlace& place, Isa isa) {
  CpuOptions made{.threads = options.device.cpu_threads, .cores = cores_of(place), .isa = isa};
  const bool crowded = place.workers() > 1 && made.cores.empty();
  const int allowed =
      std::max(1, static_cast<int>(usable_cores()) / place.workers());  // less than the cores under a quota
  const bool limited = allowed < static_cast<int>(made.cores.size());
  if (made.threads == 0 && (crowded || limited)) made.threads = crowded ? 1 : allowed;
  if (crowded || limited) made.pin = false;  // workers would be pinned to the same cores, or containers
  return made;
}

}  // namespace

Result<std::unique_ptr<Executor>> make_cpu_executor(const ModelFiles& files, const config::Options& options,
                                                    const wire::Capacity& capacity,
                                                    const LoadProgress& progress, const RankPlace& place) {
  const Result<ModelSpec> part = part_of(files.spec, place.shard);
  if (!part) return part.status();
  Result<std::unique_ptr<SwapStore>> store =
      make_swap_store(swap_path_of(options.cache.swap_path, place.worker(), place.workers()),
                      capacity.swap_blocks, kv_shape(*part, files.formats).block_bytes());
  if (!store) return store.status();
  std::unique_ptr<SwapCopier> swap;
  // Before the device pins this thread.
  if (*store || options.split.role == config::SplitRole::decode)
    swap = std::make_unique<SwapCopier>(std::move(*store), remote_peers_of(options));
  SealedMemory shared_kv;
  if (options.split.role == config::SplitRole::prefill) {
    const std::size_t bytes =
        static_cast<std::size_t>(capacity.kv_blocks) * kv_shape(*part, files.formats).block_bytes();
    Result<SealedMemory> made = SealedMemory::make("troupe-kv", bytes);
    if (!made) return made.status();
    shared_kv = std::move(*made);
  }
  const Result<ChosenIsa> isa = choose_isa(options.device.cpu_isa);
  if (!isa) return isa.status();
  auto device = std::make_unique<Cpu>(cpu_of(options, place, isa->isa));
  std::unique_ptr<Collective<Cpu>> ranks;
  if (!place.shard.alone()) {
    Result<std::unique_ptr<Collective<Cpu>>> attached = Collective<Cpu>::attach(place.memory_fd, place.shard);
    if (!attached) return attached.status();
    ranks = std::move(*attached);
    ranks->set_patience(
        std::max(RankMeeting::kPatience,
                 step_patience(place.shard, std::chrono::seconds(options.process.worker_timeout_s))));
  }
  const Result<TensorMap> map = files.map_of(place.shard);
  if (!map) return map.status();
  Result<Weights<Cpu>> weights =
      files.checkpoint ? Weights<Cpu>::load(*device, *part, files.formats, *map, progress)
                       : Weights<Cpu>::dummy(*device, files.spec, files.formats,
                                             static_cast<std::uint64_t>(options.model.seed), place.shard);
  if (!weights) return weights.status();
  Result<std::unique_ptr<Decoder<Cpu>>> decoder =
      Decoder<Cpu>::make(*device, *part, files.formats, std::move(*weights),
                         {.rows = capacity.max_tokens_per_step,
                          .sequences = capacity.max_slots,
                          .drafts = drafted_rows(capacity),
                          .positions = capacity.max_model_len,
                          .kv_blocks = capacity.kv_blocks,
                          .kv_format = files.formats.kv,
                          .tops = most_tops(capacity)},
                         shared_kv.data(), ranks.get());
  if (!decoder) return decoder.status();
  if (swap) swap->set_memory({(*decoder)->kv(), files.spec.kv_heads, place.shard});
  std::unique_ptr<Tower> tower;
  if (part->vision) {
    Result<Tower> made =
        Tower::make(*device, *part->vision, part->hidden, part->rms_norm_eps, files.formats.activations,
                    (*decoder)->vision_weights(), capacity.frame_patches);
    if (!made) return made.status();
    tower = std::make_unique<Tower>(std::move(*made));
  }
  std::unique_ptr<Drafter> drafter = make_drafter(options.speculation, capacity, decoder->get());
  return std::unique_ptr<Executor>(std::make_unique<CpuExecutor>(
      capacity, std::move(device), std::move(ranks), std::move(*decoder), std::move(swap), std::move(tower),
      kept_media_tokens(options, capacity), std::move(drafter), std::move(shared_kv), isa->slow_way));
}

}  // namespace troupe::model
