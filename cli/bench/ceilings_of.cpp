#include "cli/bench/ceilings_of.h"

#include "gpu/ceilings.h"
#include "model/cpu_isa.h"

namespace troupe::bench {

Result<model::Ceilings> measure_ceilings(const config::DeviceOptions& options) {
  if (options.device == config::Device::cuda) return measure_cuda_ceilings();
  const Result<model::ChosenIsa> chosen = model::choose_isa(options.cpu_isa);
  if (!chosen) return chosen.status();
  Cpu cpu({.pin = false,
           .isa = chosen->isa});  // the executor pins its threads later; this must not narrow what it finds
  return model::Ceilings{read_bandwidth(cpu), dot_peak(cpu)};
}

}  // namespace troupe::bench
