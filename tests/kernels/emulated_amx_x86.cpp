// The set amx in a test program: its routines with emulated tiles, on machines that have all else of it.
#include "kernels/emulated_amx.h"

#include <algorithm>

#include "gpu/isa.h"
#include "kernels/cpu/routines_amx.h"
#include "kernels/emulated_tiles.h"

namespace troupe {

bool emulates_amx() { return true; }

namespace kernels {

const Routines& emulated_amx_routines() {
  static const Routines routines = with_tiles<EmulatedTiles>(kRoutinesAvx512Bf16);
  return routines;
}

bool has_shapes() { return EmulatedTiles::configured(); }
int shapes_loaded() { return EmulatedTiles::configurations(); }
void spoil_products(bool wrong) { EmulatedTiles::spoil(wrong); }

void add_bf16_product(float* sums, const unsigned short* operands, const unsigned short* weights, int rows,
                      int inputs) {
  unsigned short x[kHalfRows][kTileInputs] = {}, side[kTileInputs / 2][2 * kSideOutputs] = {};
  for (int r = 0; r < rows; ++r) std::copy_n(operands + r * inputs, inputs, x[r]);
  std::copy_n(weights, inputs * kSideOutputs, side[0]);
  ShapesInUse<EmulatedTiles>::need(rows);
  EmulatedTiles::load_sums<0, 0>(sums, 64);
  EmulatedTiles::load_operands<0>(x, sizeof x[0]);
  EmulatedTiles::load_weights<0>(side, sizeof side[0]);
  EmulatedTiles::add_bf16_products<0, 0>();
  EmulatedTiles::store_sums<0, 0>(sums, 64);
  ShapesInUse<EmulatedTiles>::release();
}

}  // namespace kernels
}  // namespace troupe
