// The set amx in a test program: its routines with emulated tiles, on machines that have all else of it.
#include "kernels/emulated_amx.h"

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
void spoil(SpoiledProducts which) { EmulatedTiles::spoil(which); }

void add_bf16_product(float* sums, const unsigned short* operands, const unsigned short* weights, int rows,
                      int inputs) {
  ShapesInUse<EmulatedTiles>::need(rows, 2 * inputs);
  EmulatedTiles::load_sums<0, 0>(sums, 64);
  EmulatedTiles::load_operands<0>(operands, std::size_t(inputs) * 2);
  EmulatedTiles::load_weights<0>(weights, 64);
  EmulatedTiles::add_bf16_products<0, 0>();
  EmulatedTiles::store_sums<0, 0>(sums, 64);
  ShapesInUse<EmulatedTiles>::release();
}

}  // namespace kernels
}  // namespace troupe
