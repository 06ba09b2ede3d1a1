#pragma once
// Order of a matrix of wint2 on the GPU. Host and device code (constexpr).
//
// A row is pieces of 32 bytes, 128 inputs. Lane t of four takes the 8 bytes from 8 t, which are inputs
// 8 t … 8 t + 7 of each 32 that the piece covers, the same as in other formats (layout.h). Behind the bytes
// are three floats of each output, padded(outputs) super scales, as many code scales, as many zero points;
// then the scales of groups, [inputs / 128][padded(outputs)] bytes as in a file.
#include <cstddef>

#include "kernels/matrix.h"
#include "kernels/wint2.h"

namespace troupe::kernels::cuda {

/// Bytes of a row that cover kWint2Unit inputs.
inline constexpr int kWint2PieceBytes = kWint2Unit / kWint2Inputs;

/// Where the byte of inputs 4 q … 4 q + 3 lies in a row.
constexpr int wint2_place(int q) {
  const int within = q % kWint2PieceBytes, operand = within / 8, lane = within % 8 / 2;
  return q / kWint2PieceBytes * kWint2PieceBytes + lane * 8 + operand * 2 + within % 2;
}

/// Bytes from scales_of() of a matrix of so many outputs, padding included, to its scales of groups.
constexpr std::size_t wint2_groups_at(int outputs) { return std::size_t(outputs) * 3 * sizeof(float); }

}  // namespace troupe::kernels::cuda
