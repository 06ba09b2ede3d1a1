#pragma once
#include <cstdint>

namespace troupe {

/// Shapes of AMX's tile registers, as LDTILECFG reads them. Loading it zeroes all registers.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

}  // namespace troupe
