#pragma once
// The instruction set of the CPU device: what --cpu-isa asks for, as far as the machine has it.
#include <string>

#include "base/status.h"
#include "config/options.h"
#include "gpu/isa.h"

namespace troupe::model {

struct ChosenIsa {
  Isa isa = Isa::baseline;
  std::string slow_way{};  ///< a sentence if a faster set is there and may not be used; empty otherwise
};

/// invalid_argument if the option names a set that this machine does not have.
Status check_isa(config::CpuIsa asked);

/// Errors as of check_isa(). AMX that the system refuses or whose check fails (kernels/best_isa.h) is none:
/// the next set takes its place.
Result<ChosenIsa> choose_isa(config::CpuIsa asked);

}  // namespace troupe::model
