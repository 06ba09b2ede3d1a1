#pragma once
// Matrix registers: eight of up to 16 rows of 64 bytes, with fixed parts. A product adds C += A · B: sums C
// (2 · half + side), operands A (4 + half), weights B (6 + side). What multiplies with them (simd_amx.h)
// takes one of two classes of the same functions: AmxTiles (amx_tiles.h) or EmulatedTiles (tests).
#include <cstdint>

namespace troupe::kernels {

/// Shapes of the registers, as LDTILECFG reads them. Loading it zeroes all registers.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

constexpr int sums_register(int half, int side) { return 2 * half + side; }
constexpr int operands_register(int half) { return 4 + half; }
constexpr int weights_register(int side) { return 6 + side; }

}  // namespace troupe::kernels
