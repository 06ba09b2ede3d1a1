#include "base/check.h"
#include "kernels/cpu/routines.h"

namespace troupe::kernels {

[[gnu::weak]] const Routines& emulated_amx_routines() {
  TROUPE_CHECK(false && "only a test program has an emulation");
  return kRoutinesBaseline;
}

const Routines& routines(Isa isa) {
  switch (isa) {
    case Isa::baseline: return kRoutinesBaseline;
    case Isa::avx2: return kRoutinesAvx2;
    case Isa::avx512: return kRoutinesAvx512;
    case Isa::avx512_vnni: return kRoutinesAvx512Vnni;
    case Isa::avx512_bf16: return kRoutinesAvx512Bf16;
    case Isa::amx:
      return cpu_features().amx && amx_refused().empty() ? amx_routines() : emulated_amx_routines();
  }
  return kRoutinesBaseline;
}

}  // namespace troupe::kernels
