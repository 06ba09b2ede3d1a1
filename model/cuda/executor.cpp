#include "model/cuda/executor.h"

#include <algorithm>
#include <utility>

#include "gpu/nccl.h"
#include "kernels/exchange.h"
#include "model/bytes_text.h"
#include "model/cuda/queue.h"
#include "model/cuda/step_scratch.h"
#include "model/plan_check.h"
#include "model/ranks/exchange_way.h"
#include "model/ranks/part.h"
#include "model/ranks/patience.h"
#include "model/sizing.h"
#include "model/step_choices.h"
#include "model/swap/swap_sizing.h"
#include "model/weights.h"

namespace troupe::model {
namespace {

/// A second step in flight keeps the GPU busy. More would only make new arrivals wait longer.
constexpr int kStepsInFlight = 2;
/// What the driver takes for a process, with room to spare.
constexpr std::uint64_t kContextBytes = std::uint64_t{1} << 30;
/// What graphs take that are captured when the ranks have met, with room to spare.
constexpr std::uint64_t kGraphBytes = std::uint64_t{256} << 20;

/// Of a GPU that `sharing` ranks have together. What is free there does not tell how much one of them has
/// taken and may still take: each has an equal share, of which all that it takes is still to come.
GpuMemory memory_for(const Cuda& device, const ExchangeWay& way, int sharing, int ranks) {
  const CudaMemory memory = device.memory();
  GpuMemory own{memory.free, memory.total};
  std::uint64_t exchanges = way.nccl ? kNcclBytes : 0;
  if (sharing > 1) {
    own.total /= static_cast<std::uint64_t>(sharing);
    own.free = own.total - std::min(own.total, kContextBytes);
    if (!way.nccl && ranks > 1) exchanges = peer_exchange_bytes(ranks);
  }
  own.free -= std::min(own.free, exchanges);
  return own;
}

Result<std::unique_ptr<Executor>> start(const ModelFiles& files, const config::Options& options,
                                        const LoadProgress& progress, const RankPlace& place) {
  const Result<ModelSpec> spec = part_of(files.spec, place.shard);
  if (!spec) return spec.status();
  const Result<TensorMap> map = files.map_of(place.shard);
  if (!map) return map.status();
  CudaModel model;
  const Result<KernelWays> avoided = read_kernel_ways(options.device.avoided_kernels);
  if (!avoided) return avoided.status();
  model.device = std::make_unique<Cuda>(CudaOptions{.ordinal = options.parallel.gpu_of(place.worker()),
                                                    .batch_invariant = options.device.batch_invariant,
                                                    .overlap = options.device.overlap_kernels,
                                                    .avoided = *avoided});
  Cuda& device = *model.device;
  if (Status s = check_gpu(files.formats, device.capability()); !s.ok()) return s;
  const ExchangeWay way = choose_exchange(options.parallel, cuda_reaches);
  const int sharing = ranks_on(device.ordinal(), options.parallel);
  if (!place.shard.alone()) {
    Result<std::unique_ptr<Collective<Cuda>>> ranks = Collective<Cuda>::attach(
        place.memory_fd, place.shard, device, way.nccl, share_gpus(options.parallel));
    if (!ranks) return ranks.status();
    model.ranks = std::move(*ranks);
  }
  model.slow_ways = slow_choices(*spec, files.formats, kernels::cuda::traits_of(device));
  Result<wire::Capacity> sized = size_cuda(*spec, files.formats, files.tied, options,
                                           memory_for(device, way, sharing, place.shard.ranks));
  if (!sized) return sized.status();
  // The KV blocks and the length that they allow are found again when everything else is there.
  Result<wire::Capacity> limits = cuda_limits(*spec, files.formats, files.tied, options, sized->max_slots);
  if (!limits) return limits.status();
  wire::Capacity& capacity = *limits;
  capacity.max_steps_in_flight = kStepsInFlight;

  Result<Weights<Cuda>> weights =
      files.checkpoint ? Weights<Cuda>::load(device, *spec, files.formats, *map, progress)
                       : Weights<Cuda>::dummy(device, files.spec, files.formats,
                                              static_cast<std::uint64_t>(options.model.seed), place.shard);
  if (!weights) return weights.status();
  const kernels::KvCache shape = cuda_kv_shape(*spec, files.formats);
  const bool shares_kv = options.split.role == config::SplitRole::prefill;
  model.kv = std::make_unique<ReservedMemory>(
      device, device.memory().total, shares_kv ? ReservedMemory::Sharing::on : ReservedMemory::Sharing::off);
  if (!model.kv->map(2 * shape.block_bytes()))
    return failure(Code::unavailable, "no GPU memory is left for KV blocks");
  Result<std::unique_ptr<Decoder<Cuda>>> decoder =
      Decoder<Cuda>::make(device, *spec, files.formats, std::move(*weights),
                          {.rows = capacity.max_tokens_per_step,
                           .sequences = capacity.max_slots,
                           .drafts = drafted_rows(capacity),
                           .positions = capacity.max_model_len,
                           .kv_format = files.formats.kv,
                           .kv_ids = true,
                           .staged = false,
                           .tops = most_tops(capacity)},
                          model.kv->data(), model.ranks.get());
  if (!decoder) return decoder.status();
  model.decoder = std::move(*decoder);
  device.set_step_memory(model.kv->data(), model.kv->reserved());
  device.set_step_memory(model.decoder->activations().data, model.decoder->activations().bytes);
  Result<CudaSteps> steps = CudaSteps::make(device, *model.decoder, capacity, options.speculation);
  if (!steps) return steps.status();
  model.steps = std::make_unique<CudaSteps>(std::move(*steps));
  device.release_staging();  // loading has ended
  const StepScratch scratch(*spec, files.formats, kernels::cuda::traits_of(device),
                            {.rows = capacity.max_tokens_per_step,
                             .sequences = capacity.max_slots,
                             .drafts = drafted_rows(capacity)},
                            1 + capacity.max_drafts);
  model.steps->warm_up(scratch.most());
  const bool captures = !model.ranks || (model.ranks->lasting_graphs() && model.ranks->knows_steps());
  if (captures) model.steps->capture();

  if (spec->vision) {
    Result<std::unique_ptr<CudaEncoder>> encoder = CudaEncoder::make(
        {.ordinal = device.ordinal(), .overlap = options.device.overlap_kernels, .avoided = *avoided}, *spec,
        files.formats.activations, model.decoder->vision_weights(), capacity.frame_patches,
        encoder_output_bytes(capacity, *spec, files.formats, options), kept_media_tokens(options, capacity),
        model.ranks.get());
    if (!encoder) return encoder.status();
    model.encoder = std::move(*encoder);
  }

  GpuMemory left = memory_for(device, way, sharing, place.shard.ranks);
  if (sharing == 1) left.free += model.kv->mapped();
  if (!captures) left.free -= std::min(left.free, kGraphBytes);
  const std::uint64_t to_come = sharing == 1 ? 0 : cuda_fixed_bytes(capacity, *spec, files.formats);
  if (Status s = fit_cuda_kv(capacity, *spec, files.formats, options, left, to_come); !s.ok()) return s;
  if (shares_kv) model.kv->unmap();  // one piece is shared, and no block has contents yet
  if (!model.kv->map(capacity.kv_bytes)) {
    return failure(Code::unavailable, "the GPU refuses " + bytes_text(capacity.kv_bytes) +
                                          " for KV blocks; lower --gpu-memory-utilization.");
  }
  if (shares_kv) model.shared_kv = model.kv->share();
  if (Status s = size_cuda_swap(capacity, options, shape.block_bytes()); !s.ok()) return s;
  if (capacity.swap_blocks > 0 || options.split.role == config::SplitRole::decode) {
    const KvPart part{model.decoder->kv(), files.spec.kv_heads, place.shard};
    model.swap = std::make_unique<CudaSwap>(device, part, capacity.swap_blocks);
    if (const RemotePeers remotes = remote_peers_of(options); remotes.first + remotes.count > 0)
      model.remote = std::make_unique<CudaRemoteCopies>(device, part, remotes);
  }
  if (options.split.role != config::SplitRole::mixed) set_nccl_defaults("");  // threads read them later
  device.sync();
  return std::unique_ptr<Executor>(std::make_unique<CudaQueue>(
      capacity, std::move(model),
      step_patience(place.shard, std::chrono::seconds(options.process.worker_timeout_s))));
}

}  // namespace

Result<std::unique_ptr<Executor>> make_cuda_executor(const ModelFiles& files, const config::Options& options,
                                                     const LoadProgress& progress, const RankPlace& place) {
  if (Status s = cuda_usable(); !s.ok()) return s;
  try {
    return start(files, options, progress, place);
  } catch (const CudaError& error) {
    return failure(Code::internal, error.what());
  }
}

std::uint64_t peer_exchange_bytes(int ranks) {
  return kernels::exchange_inbox_bytes(ranks) + sizeof(kernels::ExchangeTable);
}

}  // namespace troupe::model
