#include "cli/bench/ceilings_of.h"
#include "gpu/ceilings.h"
#include "kernels/matrix_peak.h"

namespace troupe::bench {

Result<model::Ceilings> measure_cuda_ceilings() {
  if (Status usable = cuda_usable(); !usable.ok()) return usable;
  try {
    Cuda device;
    return model::Ceilings{copy_bandwidth(device), kernels::matrix_peak(device)};
  } catch (const CudaError& error) {
    return failure(Code::unavailable, error.what());
  }
}

}  // namespace troupe::bench
