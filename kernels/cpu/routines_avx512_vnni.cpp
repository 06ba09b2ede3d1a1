#include "kernels/cpu/routines_of.h"
#include "kernels/cpu/simd_avx512_vnni.h"

namespace troupe::kernels {

constinit const Routines kRoutinesAvx512Vnni = routines_of<Avx512Vnni>();

}  // namespace troupe::kernels
