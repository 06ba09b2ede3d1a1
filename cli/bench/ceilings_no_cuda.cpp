#include "cli/bench/ceilings_of.h"
#include "gpu/cuda.h"

namespace troupe::bench {

Result<model::Ceilings> measure_cuda_ceilings() { return cuda_usable(); }

}  // namespace troupe::bench
