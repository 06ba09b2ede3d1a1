#include "model/make_executor.h"

#include <algorithm>
#include <utility>

#include "gpu/cuda.h"
#include "model/checkpoint/model_files.h"
#include "model/cpu_executor.h"
#include "model/cuda/executor.h"
#include "model/echo_executor.h"
#include "model/host_memory.h"
#include "model/preflight.h"
#include "model/ranks/part.h"
#include "model/ranks/weight_sums.h"
#include "model/sizing.h"

namespace troupe::model {

namespace {

/// The executor, if the other ranks have what it has.
Result<std::unique_ptr<Executor>> as_the_others(Result<std::unique_ptr<Executor>> executor,
                                                const ModelFiles& files, const RankPlace& place) {
  if (!executor || place.shard.alone() || place.memory_fd < 0) return executor;
  if (Status s = compare_with_ranks(place.memory_fd, place.shard, files); !s.ok()) return s;
  return executor;
}

}  // namespace

Result<std::unique_ptr<Executor>> make_executor(const config::Options& options, const LoadProgress& progress,
                                                const RankPlace& place) {
  config::Device device = options.device.device;
  if (device == config::Device::automatic) {
    device = Cuda::available() ? config::Device::cuda : config::Device::cpu;
  }
  if (device == config::Device::echo) {
    Result<Preflight> checked = preflight(options);
    if (!checked) return checked.status();
    return make_echo_executor(checked->capacity, options.speculation);
  }
  Result<ModelFiles> files = open_model(options.model, place.shard, options.speculation);
  if (!files) return files.status();
  if (Status s = files->choose(device, options.quantization); !s.ok()) return s;
  if (Status s = check_ranks(*files, place.shard); !s.ok()) return s;
  if (device == config::Device::cuda)
    return as_the_others(make_cuda_executor(*files, options, progress, place), *files, place);
  // Ranks start and die at different times: what the others hold by now is no part of this one's share.
  const auto share = static_cast<std::uint64_t>(options.parallel.found_bytes);
  HostMemory memory = host_memory();
  if (share != 0) memory.available = std::min(memory.available, share);
  // The rest of the server has its memory by now, but for that of pictures, which comes with requests.
  if (share == 0 && files->spec.vision)
    memory.reserved = static_cast<std::uint64_t>(options.media.memory_bytes);
  Result<wire::Capacity> capacity =
      size_cpu(*part_of(files->spec, place.shard), files->formats, files->tied, options, memory);
  if (!capacity) return capacity.status();
  return as_the_others(make_cpu_executor(*files, options, *capacity, progress, place), *files, place);
}

}  // namespace troupe::model
