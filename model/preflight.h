#pragma once
// Everything that can be known about a start before it is made: the files are there and fit each other, and
// the memory suffices. Errors end a start here, before a port is opened or a process is begun.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "ipc/wire.h"
#include "model/checkpoint/spec.h"

namespace troupe::model {

struct Preflight {
  config::Device device = config::Device::cpu;  ///< chosen: never automatic
  std::optional<ModelSpec> spec;                ///< none for echo without a model
  std::uint64_t spec_hash = 0;                  ///< for Hello; 0 without a spec
  DType dtype = DType::bf16;                    ///< to compute in
  /// The resolved limits and the memory they take. The worker sizes itself again with what is free
  /// then; its Hello is what counts.
  wire::Capacity capacity;
  std::uint64_t available_bytes = 0;  ///< before anything was loaded
  int sequences_at_full_length = 0;
  std::vector<std::string> notes;  ///< one line each, for the start summary
};

/// Checks options.model.directory, as config::resolve_model() left it. Reads headers only, loads nothing.
/// Leaves no GPU context behind in this process.
Result<Preflight> preflight(const config::Options& options);

/// The same hash alone, for a process that needs no more.
Result<std::uint64_t> model_spec_hash(const config::Options& options);

/// "What fits", for --dry-run and the start summary: a few lines, each ended by a newline.
std::string summary(const Preflight& preflight);

}  // namespace troupe::model
