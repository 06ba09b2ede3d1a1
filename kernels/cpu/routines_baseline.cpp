#include "kernels/cpu/routines_of.h"
#include "kernels/cpu/simd_baseline.h"

namespace troupe::kernels {

constinit const Routines kRoutinesBaseline = routines_of<Baseline>();

}  // namespace troupe::kernels
