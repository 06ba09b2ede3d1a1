// For CPUs other than x86-64: they have the baseline alone.
#include "kernels/cpu/routines.h"

namespace troupe::kernels {

const Routines& routines(Isa) { return kRoutinesBaseline; }
const Routines& amx_routines() { return kRoutinesBaseline; }
const Routines& emulated_amx_routines() { return kRoutinesBaseline; }

}  // namespace troupe::kernels
