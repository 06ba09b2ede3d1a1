#pragma once
// Quantised weights on their way into a matrix: where codes and scales lie, and numbers that become codes.
//
// A panel of codes is described in tile_quantised.h. Scales: a float for each output; with groups of inputs,
// for each panel and each group the 32 outputs' bf16 side by side. wint2: a panel's Wint2Scales one after the
// other, then those of the next panel.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu/cpu.h"
#include "kernels/cpu/routines.h"
#include "kernels/matrix.h"
#include "kernels/pack.h"
#include "kernels/wint2.h"

namespace troupe::kernels {

/// Added to a code, so that the operand of a dot product is unsigned.
constexpr int code_offset(WeightKind kind) {
  return kind == WeightKind::int4 ? 8 : kind == WeightKind::wint2 ? kWint2Offset : 128;
}

/// Inputs that share a scale.
constexpr int inputs_per_scale(const Matrix& m) {
  return m.format.group != 0 ? m.format.group : padded_inputs(m.format, m.inputs);
}

/// What TileArgs has of the same names.
struct PanelScales {
  const void* scales = nullptr;
  const float* lines = nullptr;
  const std::uint8_t* groups = nullptr;
};

/// Where the tile finds the scales of a panel, from input `input` on, a multiple of the group. `last`: the
/// tile gets the last inputs, so that scales of outputs follow.
PanelScales panel_scales(const Matrix& matrix, int panel, int input, bool last);

/// What a panel of wint2 has beside its bytes, all for 32 outputs side by side.
struct Wint2Scales {
  float* super_scales = nullptr;
  float* code_scales = nullptr;    ///< 32, and behind them the 32 zero points
  std::uint8_t* groups = nullptr;  ///< a row for each kWint2Unit inputs; the first group is in the upper half
};
Wint2Scales wint2_scales(const Matrix& matrix, int panel);

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
