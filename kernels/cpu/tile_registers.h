#pragma once
// Matrix registers: eight of up to 16 rows of 64 bytes, with fixed parts. A product adds C += A · B: sums C
// (2 · half + side), operands A (4 + half), weights B (6 + side). What multiplies with them (simd_amx.h)
// takes one of two classes of the same functions: AmxTiles (amx_tiles.h) or EmulatedTiles (tests).
#include "gpu/tile_shapes.h"

namespace troupe::kernels {

constexpr int sums_register(int half, int side) { return 2 * half + side; }
constexpr int operands_register(int half) { return 4 + half; }
constexpr int weights_register(int side) { return 6 + side; }

}  // namespace troupe::kernels
