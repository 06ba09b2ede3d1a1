#pragma once
// What the ranks find on the GPUs of this machine.
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "gpu/cuda_probe.h"
#include "gpu/nccl.h"
#include "model/ranks/exchange_way.h"

namespace troupe::model {

struct GpusOfRanks {
  Status absent;  ///< not ok: there is no usable GPU at all, and why; then nothing else is set
  /// Of all GPUs alike. Its memory is that of the rank which has least; `free` is what the rank finds beside
  /// its exchanges.
  CudaProbe each;
  ExchangeWay way;
  std::vector<std::string> notes;  ///< of ranks that share a GPU, and of the way
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
/// ranks than the visible GPUs have room for, a GPU of --rank-devices that is not there, GPUs of several
/// kinds (all ranks would wait for the slowest), one of several that cannot be used, one that
/// CUDA_VISIBLE_DEVICES names twice, an exchange over NCCL without its library, or one whose sums may depend
/// on the batch in spite of --batch-invariant. One rank that cannot use its GPU has none: `absent`.
Result<GpusOfRanks> find_gpus(const config::Options& options, const GpuProbes& probes = {});

}  // namespace troupe::model
