#include "model/swap/swap_sizing.h"

#include <algorithm>
#include <cstdio>

#include "model/bytes_text.h"
#include "model/host_memory.h"
#include "model/sizing.h"
#include "model/swap/swap_file.h"

namespace troupe::model {
namespace {

constexpr std::uint64_t kMaxSwapBlocks = 1 << 24;

std::string asked(const config::CacheOptions& options) {
  char text[48];
  std::snprintf(text, sizeof text, "--swap-space is %g GiB; ", options.swap_space_gib);
  return text;
}

}  // namespace

std::uint64_t swap_bytes(const config::Options& options) {
  return static_cast<std::uint64_t>(options.cache.swap_space_gib * static_cast<double>(1 << 30)) /
         static_cast<std::uint64_t>(options.parallel.tensor_parallel_size);
}

std::string swap_path_of(const std::string& path, int worker, int workers) {
  return workers == 1 ? path : path + "." + std::to_string(worker);
}

Status size_swap(wire::Capacity& capacity, const config::Options& options, std::uint64_t block_bytes,
                 std::uint64_t left) {
  capacity.swap_blocks = 0;
  const std::uint64_t bytes = swap_bytes(options);
  if (options.cache.swap_space_gib <= 0) return {};
  if (bytes < block_bytes) {
    return invalid(asked(options.cache) + "one KV block takes " + std::to_string(block_bytes) + " bytes.",
                   "swap-space");
  }
  if (options.cache.swap_path.empty() && bytes > left) {
    return invalid(asked(options.cache) + "only " + bytes_text(left) + " of memory are free beside the rest.",
                   "swap-space");
  }
  capacity.swap_blocks = static_cast<std::int32_t>(std::min(bytes / block_bytes, kMaxSwapBlocks));
  return {};
}

Status size_cuda_swap(wire::Capacity& capacity, const config::Options& options, std::uint64_t block_bytes) {
  if (!options.cache.swap_path.empty()) {
    return invalid("--swap-path is " + options.cache.swap_path +
                       "; it needs --device cpu: a GPU's blocks go to page-locked memory.",
                   "swap-path");
  }
  return size_swap(capacity, options, block_bytes,
                   host_memory().available / static_cast<std::uint64_t>(options.parallel.workers()));
}

RemotePeers remote_peers_of(const config::Options& options) {
  return {static_cast<std::uint32_t>(options.split.prefill_ports.size()),
          static_cast<std::uint32_t>(options.remote.prefill_engines.size())};
}

Status check_swap_file(const config::Options& options, const wire::Capacity& capacity,
                       std::uint64_t block_bytes) {
  if (options.cache.swap_path.empty() || capacity.swap_blocks == 0) return {};
  const int workers = options.parallel.workers();
  for (int worker = 0; worker < workers; ++worker) {
    const auto file = SwapFile::open(swap_path_of(options.cache.swap_path, worker, workers),
                                     static_cast<std::uint64_t>(capacity.swap_blocks) * block_bytes);
    if (!file) return file.status();
  }
  return {};
}

}  // namespace troupe::model
