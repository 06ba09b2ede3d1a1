#pragma once
// The table of the set amx; included by routines_amx.cpp and by the tests' emulation.
#include "kernels/cpu/attend.h"
#include "kernels/cpu/simd_amx.h"

namespace troupe::kernels {

/// `base` with products and attention of bf16 through tiles.
template <class Tiles>
Routines with_tiles(Routines base) {
  using V = Amx<Tiles>;
  constexpr auto b = static_cast<std::size_t>(DType::bf16);
  base.tile_rows[b] = {V::kTileRows, 0, true};
  base.tile[b] = tile<V, DType::bf16>;
  base.attend[b] = attend<V, DType::bf16>;
  base.release_tiles = ShapesInUse<Tiles>::release;
  return base;
}

}  // namespace troupe::kernels
