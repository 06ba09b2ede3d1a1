#include "kernels/cpu/routines.h"

namespace troupe::kernels {

const Routines& routines(Isa isa) {
  switch (isa) {
    case Isa::baseline: return kRoutinesBaseline;
    case Isa::avx2: return kRoutinesAvx2;
    case Isa::avx512: return kRoutinesAvx512;
    case Isa::avx512_vnni: return kRoutinesAvx512Vnni;
    case Isa::avx512_bf16: return kRoutinesAvx512Bf16;
  }
  return kRoutinesBaseline;
}

}  // namespace troupe::kernels
