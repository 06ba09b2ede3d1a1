#pragma once
// Quantised weights on their way into a matrix: where codes and scales lie, and numbers that become codes.
//
// A panel of codes is described in tile_quantised.h. Scales: a float for each output; with groups of inputs,
// for each panel and each group the 32 outputs' bf16 side by side.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu/cpu.h"
#include "kernels/cpu/routines.h"
#include "kernels/matrix.h"
#include "kernels/pack.h"

namespace troupe::kernels {

/// Added to an int8 or int4 code, so that it is stored unsigned.
constexpr int code_offset(WeightKind kind) { return kind == WeightKind::int4 ? 8 : 128; }

/// Inputs that share a scale.
constexpr int inputs_per_scale(const Matrix& m) {
  return m.format.group != 0 ? m.format.group : padded_inputs(m.format, m.inputs);
}

/// Where the tile finds the scales of a panel, from input `input` on, a multiple of the group.
const void* panel_scales(const Matrix& matrix, int panel, int input);

/// Stores the codes of an output's inputs: padded_inputs() of them, 0 behind the last input. Touches no other
/// output's, so that threads may store outputs of one panel.
void place_codes(const Matrix& into, int output, const std::int8_t* codes);
/// Stores the scale of a group of an output's inputs; without groups, of all: group 0.
void place_scale(const Matrix& into, int output, int group, float scale);

/// Turns an output's numbers into codes and scales as quantize.h says, and stores both.
class Quantiser {
 public:
  Quantiser(Cpu& device, const Matrix& into, const RowPart& part)
      : r_(routines(device.isa())),
        into_(into),
        skipped_(part.skipped(into)),
        width_(padded_inputs(into.format, into.inputs)),
        line_width_(padded_inputs(into.format, std::max(part.inputs(into), skipped_ + width_))) {}

  /// Numbers of a line: the row's inputs with their padding.
  int line_width() const { return line_width_; }
  /// Working memory for put().
  std::size_t code_bytes() const { return static_cast<std::size_t>(width_); }
  /// `line`: line_width() numbers, 0 behind the row's last input.
  void put(int output, const float* line, std::int8_t* codes) const;

 private:
  const Routines& r_;
  const Matrix& into_;
  const int skipped_;  ///< inputs of a line before the first that the matrix takes
  const int width_;    ///< inputs of the matrix with their padding
  const int line_width_;
};

}  // namespace troupe::kernels
