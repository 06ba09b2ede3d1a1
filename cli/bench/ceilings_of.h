#pragma once
// The ceilings of the device that a bench is about to use, measured before anything else is on it.
#include "base/status.h"
#include "config/options.h"
#include "model/roofline.h"

namespace troupe::bench {

/// For a chosen device, cpu or cuda, and the CPU's instruction set. unavailable for cuda in a build or on a
/// machine without it.
Result<model::Ceilings> measure_ceilings(const config::DeviceOptions& options);

/// Its part for CUDA: a file of its own, as a build may be without.
Result<model::Ceilings> measure_cuda_ceilings();

}  // namespace troupe::bench
