#pragma once
// What the ranks find on the GPUs of this machine.
#include <functional>
#include <string>

#include "base/status.h"
#include "config/options.h"
#include "gpu/cuda_probe.h"
#include "gpu/nccl.h"
#include "model/ranks/exchange_way.h"

namespace troupe::model {

struct GpusOfRanks {
  Status absent;  ///< not ok: there is no usable GPU at all, and why; then nothing else is set
  CudaProbe
      each;  ///< of all GPUs alike; its free memory is the least that one rank finds beside its exchanges
  ExchangeWay way;
  std::string note;  ///< of the way; empty: there is nothing to say
};

/// CUDA_VISIBLE_DEVICES; empty: all are visible.
std::string visible_devices();

/// How this machine is looked at.
struct GpuProbes {
  std::function<Result<CudaProbe>(int ordinal)> gpu = [](int ordinal) { return probe_cuda(ordinal); };
  std::function<Result<std::string>()> nccl = [] { return nccl_version(); };
  std::function<std::string()> visible = visible_devices;
};

/// Looks at the GPUs that the ranks are to run on. A failure, one sentence, refuses what was asked for: more
/// ranks than the visible GPUs have room for, GPUs of several kinds (all ranks would wait for the slowest),
/// one of several that cannot be used, one that CUDA_VISIBLE_DEVICES names twice, an exchange over NCCL
/// without its library, or one whose sums may depend on the batch in spite of --batch-invariant. One rank
/// that cannot use its GPU has none: `absent`.
Result<GpusOfRanks> find_gpus(const config::Options& options, const GpuProbes& probes = {});

}  // namespace troupe::model
