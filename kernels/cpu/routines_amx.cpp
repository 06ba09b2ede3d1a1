#include "kernels/cpu/routines_amx.h"

#include "kernels/cpu/amx_tiles.h"

namespace troupe::kernels {

const Routines& amx_routines() {
  static const Routines routines = with_tiles<AmxTiles>(kRoutinesAvx512Bf16);
  return routines;
}

}  // namespace troupe::kernels
