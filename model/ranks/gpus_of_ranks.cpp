#include "model/ranks/gpus_of_ranks.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "config/parse.h"
#include "model/cuda/executor.h"

namespace troupe::model {
namespace {

/// A note that names NCCL's version.
Result<std::string> find_nccl(const std::string& why, const GpuProbes& probes) {
  const Result<std::string> version = probes.nccl();
  if (version.ok()) return "ranks exchange over NCCL " + *version + ", because " + why;
  return failure(Code::unsupported, "Ranks have to exchange over NCCL, because " + why + "; " +
                                        version.status().message + ". LD_LIBRARY_PATH may name its folder.");
}

Status gpu_is_absent(const config::ParallelOptions& parallel, int visible) {
  std::string got;
  for (const int device : parallel.rank_devices) got += (got.empty() ? "" : ",") + std::to_string(device);
  return invalid(
      "--rank-devices: got " + got + ", expected " +
          (visible == 1 ? "0 alone, the one visible GPU"
                        : "numbers from 0 to " + std::to_string(visible - 1) + ", the visible GPUs") +
          " (CUDA_VISIBLE_DEVICES)",
      "rank-devices");
}

Status too_many(const config::ParallelOptions& parallel, int visible) {
  if (!parallel.rank_devices.empty()) return gpu_is_absent(parallel, visible);
  const int sharing = parallel.ranks_per_gpu;
  const bool engines = parallel.data_parallel_size > 1;
  const std::string flag = engines ? "data-parallel-size" : "tensor-parallel-size";
  const std::string got = engines ? std::to_string(parallel.data_parallel_size) + " engines with " +
                                        counted(parallel.tensor_parallel_size, "rank") + " each"
                                  : std::to_string(parallel.tensor_parallel_size);
  return invalid("--" + flag + ": got " + got + ", expected at most " + std::to_string(visible * sharing) +
                     (engines ? " ranks, " : ", ") +
                     (sharing > 1 ? "the visible GPUs times --ranks-per-gpu" : "the number of visible GPUs") +
                     " (CUDA_VISIBLE_DEVICES)",
                 flag);
}

/// "ranks take turns on GPUs that they share (0, 1 on GPU 0; 2, 3 on GPU 1): that is slow, and for tests".
std::string sharing_note(const config::ParallelOptions& parallel) {
  std::string places;
  for (const int gpu : gpus_of(parallel)) {
    std::string ranks;
    for (int worker = 0; worker < parallel.workers(); ++worker) {
      if (parallel.gpu_of(worker) == gpu) ranks += (ranks.empty() ? "" : ", ") + std::to_string(worker);
    }
    places += (places.empty() ? "" : "; ") + ranks + " on GPU " + std::to_string(gpu);
  }
  return "ranks take turns on GPUs that they share (" + places + "): that is slow, and for tests";
}

Status unlike(const CudaProbe& first, int first_ordinal, const CudaProbe& other, int ordinal) {
  return invalid("--tensor-parallel-size: GPU " + std::to_string(first_ordinal) + " is " + first.name +
                     " and GPU " + std::to_string(ordinal) + " is " + other.name +
                     ", expected GPUs of one kind; CUDA_VISIBLE_DEVICES chooses them",
                 "tensor-parallel-size");
}

/// CUDA does not count a device that is named again.
Status check_visible(std::string_view named) {
  std::set<std::string_view> seen;
  for (std::string_view rest = named; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    std::string_view device = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    while (device.starts_with(' ')) device.remove_prefix(1);
    while (device.ends_with(' ')) device.remove_suffix(1);
    if (device.starts_with('-')) break;  // those behind it are not visible
    if (device.empty() || seen.insert(device).second) continue;
    return invalid(
        "CUDA_VISIBLE_DEVICES is " + std::string(named) + ", which names device " + std::string(device) +
            " twice; each rank has a GPU of its own, so name different ones, or let ranks share one with "
            "--rank-devices",
        "tensor-parallel-size");
  }
  return {};
}

/// NCCL adds up a long message in another order than a short one, and a message is as long as the batch. Two
/// numbers have one sum.
Status check_order(const config::Options& options, const ExchangeWay& way) {
  const int ranks = options.parallel.tensor_parallel_size;
  if (!way.nccl || ranks <= 2 || !options.device.batch_invariant) return {};
  return failure(Code::unsupported,
                 "--batch-invariant is not available with --tensor-parallel-size " + std::to_string(ranks) +
                     " here: ranks have to exchange over NCCL, because " + way.why +
                     ", and NCCL's order of a sum over more than two ranks may depend on the batch.");
}

}  // namespace

std::string visible_devices() {
  const config::Environment environment = config::process_environment();
  const auto named = environment.find("CUDA_VISIBLE_DEVICES");
  return named == environment.end() ? std::string() : named->second;
}

Result<GpusOfRanks> find_gpus(const config::Options& options, const GpuProbes& probes) {
  const config::ParallelOptions& parallel = options.parallel;
  const int ranks = parallel.tensor_parallel_size, workers = parallel.workers();
  const std::vector<int> ordinals = gpus_of(parallel);
  std::map<int, CudaProbe> gpus;
  if (workers > 1) {
    if (Status s = check_visible(probes.visible()); !s.ok()) return s;
  }
  Status refused;  // of the first that cannot be used
  bool none = true;
  if (ordinals.front() > 0) {  // how many there are is known of one that is there
    const Result<CudaProbe> gpu = probes.gpu(0);
    if (gpu.ok() && ordinals.back() >= gpu->devices) return too_many(parallel, gpu->devices);
  }
  for (const int ordinal : ordinals) {
    Result<CudaProbe> gpu = probes.gpu(ordinal);
    if (gpu.ok() && ordinals.back() >= gpu->devices) return too_many(parallel, gpu->devices);
    // One without room for a context is there, and another process uses it.
    if (gpu.ok() || gpu.status().code != Code::unsupported) none = false;
    if (!gpu.ok() && refused.ok()) refused = gpu.status();
    if (gpu.ok()) gpus.emplace(ordinal, *std::move(gpu));
  }
  GpusOfRanks found;
  if (!refused.ok() && (none || workers == 1)) {
    found.absent = std::move(refused);
    return found;
  }
  if (!refused.ok()) return refused;
  found.each = gpus.begin()->second;
  found.each.free = found.each.total = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [ordinal, gpu] : gpus) {
    if (gpu.name != found.each.name) return unlike(found.each, ordinals.front(), gpu, ordinal);
    const auto sharing = static_cast<std::uint64_t>(ranks_on(ordinal, parallel));
    if (gpu.free / sharing >= found.each.free) continue;
    found.each.free = gpu.free / sharing;
    found.each.total = gpu.total / sharing;
  }
  if (share_gpus(parallel)) found.notes.push_back(sharing_note(parallel));
  if (ranks == 1) return found;
  found.way =
      choose_exchange(parallel, [&](int from, int to) { return (gpus.at(from).reaches >> to & 1) != 0; });
  if (Status s = check_order(options, found.way); !s.ok()) return s;
  if (found.way.nccl) {
    Result<std::string> note = find_nccl(found.way.why, probes);
    if (!note.ok()) return note.status();
    found.notes.push_back(*std::move(note));
  }
  found.each.free -= std::min(found.each.free, found.way.nccl ? kNcclBytes : peer_exchange_bytes(ranks));
  return found;
}

}  // namespace troupe::model
