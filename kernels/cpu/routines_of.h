#pragma once
// The table of one instruction set; included by routines_X.cpp alone.
#include "kernels/cpu/attend.h"
#include "kernels/cpu/quantise.h"
#include "kernels/cpu/scan.h"
#include "kernels/cpu/tile_quantised.h"
#include "kernels/cpu/wint2_words.h"

namespace troupe::kernels {

template <class V>
constexpr Routines routines_of() {
  constexpr DType b = DType::bf16, h = DType::f16, f = DType::f32;
  constexpr TileRows rows{V::kTileRows, V::kNearRows, false};
  return {.tile_rows = {rows, rows, rows},
          .native = {V::kBf16Dot, false, true},
          .tile = {tile<V, b>, tile<V, h>, tile<V, f>},
          .dot_rows = {V::kDotRows, V::kNearDotRows, false},
          .tile_int8 = quantised_tile<V, WeightKind::int8, false>,
          .tile_int4 = quantised_tile<V, WeightKind::int4, false>,
          .tile_int4_groups = quantised_tile<V, WeightKind::int4, true>,
          .tile_wint2 = quantised_tile<V, WeightKind::wint2, true>,
          .tile_wint2_windows = quantised_tile<V, WeightKind::wint2, true, true>,
          .release_tiles = nullptr,
          .wint2_windows = wint2_windows<V>,
          .wint2_lines = wint2_lines<V>,
          .wint2_nearest = wint2_nearest<V>,
          .quantise = {quantise<V, b>, quantise<V, h>, quantise<V, f>},
          .largest_magnitude = largest_magnitude<V>,
          .codes = codes<V>,
          .expand = {expand<V, b>, expand<V, h>, expand<V, f>},
          .narrow = {narrow<V, b>, narrow<V, h>, narrow<V, f>},
          .add = add_to<V>,
          .norm = {norm<V, b>, norm<V, h>, norm<V, f>},
          .swiglu = {swiglu<V, b>, swiglu<V, h>, swiglu<V, f>},
          .exponentials = exponentials<V>,
          .attend = {attend<V, b>, attend<V, h>, attend<V, f>},
          .merge = {merge<V, b>, merge<V, h>, merge<V, f>},
          .peak = peak<V>,
          .find = find<V>,
          .mask = mask<V>,
          .sum_exp = sum_exp<V>,
          .weigh = weigh<V>,
          .tally = tally<V>,
          .collect = collect<V>,
          .next_above = next_above<V>};
}

}  // namespace troupe::kernels
