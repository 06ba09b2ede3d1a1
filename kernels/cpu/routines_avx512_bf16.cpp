#include "kernels/cpu/routines_of.h"
#include "kernels/cpu/simd_avx512_bf16.h"

namespace troupe::kernels {

constinit const Routines kRoutinesAvx512Bf16 = routines_of<Avx512Bf16>();

}  // namespace troupe::kernels
