#include "cli/bench/ceilings_of.h"

#include "gpu/ceilings.h"

namespace troupe::bench {

Result<model::Ceilings> measure_ceilings(config::Device device) {
  if (device == config::Device::cuda) return measure_cuda_ceilings();
  Cpu cpu({.pin = false});  // the executor pins its threads later; this must not narrow what it finds
  return model::Ceilings{read_bandwidth(cpu), dot_peak(cpu)};
}

}  // namespace troupe::bench
