#pragma once
// The instruction set that the CPU device should have. AMX is checked where it is found: few processors have
// run the code for it.
#include <string>

#include "base/status.h"
#include "gpu/isa.h"

namespace troupe::kernels {

/// Ok if small products through amx, which has to be usable(), agree with sums in double precision. Else what
/// differs. Takes milliseconds.
Status check_amx();

struct BestIsa {
  Isa isa = Isa::baseline;
  std::string why_not_amx{};  ///< a sentence if the processor has AMX and `isa` is another; empty otherwise
};

/// amx if the processor has it, the system permits it and check_amx() is ok; else cpu_features().best. Found
/// once per process; call it before threads compute.
const BestIsa& best_isa();

}  // namespace troupe::kernels
