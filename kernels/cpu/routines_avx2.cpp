#include "kernels/cpu/routines_of.h"
#include "kernels/cpu/simd_avx2.h"

namespace troupe::kernels {

constinit const Routines kRoutinesAvx2 = routines_of<Avx2>();

}  // namespace troupe::kernels
