#include "kernels/cpu/routines_of.h"
#include "kernels/cpu/simd_avx512.h"

namespace troupe::kernels {

constinit const Routines kRoutinesAvx512 = routines_of<Avx512>();

}  // namespace troupe::kernels
