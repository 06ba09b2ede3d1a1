#pragma once
// Checks that run before anything is started: the model's files exist and fit each other, and the memory
// suffices. An error ends the start here, before a port is open or a child process exists.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "ipc/wire.h"
#include "model/checkpoint/spec.h"
#include "model/ranks/gpus_of_ranks.h"
#include "model/ranks/shard.h"
#include "model/weight_formats.h"

namespace troupe::model {

/// What one of several ranks holds, and how many KV blocks it has room for beside that.
struct RankShare {
  std::uint64_t weight_bytes = 0;
  int tokens = 0;          ///< of the vocabulary
  int experts = 0;         ///< whole ones of a layer; 0 where each is cut, and in a dense model
  int shared_experts = 0;  ///< likewise
  int kv_blocks = 0;

  friend bool operator==(const RankShare&, const RankShare&) = default;
};

struct Preflight {
  config::Device device = config::Device::cpu;  ///< the device that will be used; never `automatic`
  std::optional<CudaProbe> gpu;                 ///< the first rank's; on `cuda` alone
  std::optional<ModelSpec> spec;                ///< none for the echo device without a model
  std::uint64_t spec_hash = 0;                  ///< for Hello; 0 without a spec
  WeightFormats formats;                        ///< of weights, activations and KV
  Shard shard;                                  ///< of the rank that has the least room for KV blocks
  /// The resolved limits, and the memory that they take on that rank: an estimate. The worker sizes itself
  /// again with the memory that is free when it starts, and the capacity in its Hello is what holds.
  wire::Capacity capacity;
  std::vector<RankShare> shares;      ///< by rank; empty with one rank
  std::uint64_t block_bytes = 0;      ///< of one KV block on a rank; 0 without a spec
  std::uint64_t available_bytes = 0;  ///< free memory of the device for a rank, before anything is loaded
  std::uint64_t reserved_bytes = 0;   ///< of them, for the rest of the server (host_memory.h); 0 on a GPU
  int sequences_at_full_length = 0;
  std::vector<FormatSize> sizes;   ///< of that rank's weights; empty without a spec
  std::vector<std::string> notes;  ///< one line each, for the start summary
};

/// Checks options.model.directory, which config::resolve_model() has filled in. Reads headers only, loads no
/// weights. Leaves no GPU context in this process. --device auto is the CPU where there is no usable GPU;
/// what find_gpus() refuses is refused.
Result<Preflight> preflight(const config::Options& options, const GpuProbes& probes = {});

/// The same for a model of which there is nothing but its shape: no files are read, and weights are taken to
/// be stored as options.model.dtype and options.quantization say. --device echo is invalid_argument.
Result<Preflight> preflight_shape(const ModelSpec& spec, const config::Options& options,
                                  const GpuProbes& probes = {});

/// Preflight::spec_hash alone, for a process that needs nothing else.
Result<std::uint64_t> model_spec_hash(const config::Options& options);

/// Model, device, memory and limits, for --dry-run and the start summary: lines, each ended by a newline.
std::string summary(const Preflight& preflight);

}  // namespace troupe::model
