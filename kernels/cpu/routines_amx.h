#pragma once
// The table of the set amx; included by routines_amx.cpp and by the tests' emulation.
#include "kernels/cpu/attend.h"
#include "kernels/cpu/tile_codes_amx.h"

namespace troupe::kernels {

/// `base` with products and attention of bf16, and products of quantised weights, through tiles.
template <class Tiles>
Routines with_tiles(Routines base) {
  using V = Amx<Tiles>;
  constexpr auto b = static_cast<std::size_t>(DType::bf16);
  constexpr TileRows rows{V::kTileRows, 0, true};
  base.tile_rows[b] = rows;
  base.dot_rows = rows;
  base.tile[b] = tile<V, DType::bf16>;
  base.attend[b] = attend<V, DType::bf16>;
  base.tile_int8 = TiledCodes<Tiles, WeightKind::int8, false>::multiply;
  base.tile_int4 = TiledCodes<Tiles, WeightKind::int4, false>::multiply;
  base.tile_int4_groups = TiledCodes<Tiles, WeightKind::int4, true>::multiply;
  base.tile_wint2 = TiledCodes<Tiles, WeightKind::wint2, true>::multiply;
  base.tile_wint2_windows = TiledCodes<Tiles, WeightKind::wint2, true, true>::multiply;
  base.release_tiles = ShapesInUse<Tiles>::release;
  return base;
}

}  // namespace troupe::kernels
