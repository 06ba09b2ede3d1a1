#pragma once
// Index of an element in a packed matrix, for ops that access elements instead of panels.
#include <cstddef>

#include "base/check.h"
#include "kernels/matrix.h"
#include "kernels/pack.h"

namespace troupe::kernels {

/// Bytes of 32 outputs' weights of one input.
constexpr std::size_t input_bytes(const WeightFormat& format) {
  return kPanel * static_cast<std::size_t>(format.bits()) / 8;
}

/// Bytes of one panel of 32 outputs, without its scales.
constexpr std::size_t panel_bytes(const WeightFormat& format, int inputs) {
  const int width = format.quantised() ? padded_inputs(format, inputs) : inputs + inputs % 2;
  return static_cast<std::size_t>(width) * input_bytes(format);
}

/// Index of weight (output, input) in the elements of a packed matrix of floats. Codes: quantiser.h.
constexpr std::size_t packed_index(DType dtype, int inputs, int output, int input) {
  const auto panel = static_cast<std::size_t>(output / kPanel);
  const auto lane = static_cast<std::size_t>(output % kPanel);
  const auto i = static_cast<std::size_t>(input);
  const std::size_t start = panel * kPanel * static_cast<std::size_t>(inputs + inputs % 2);
  return dtype == DType::bf16 ? start + i / 2 * 2 * kPanel + lane * 2 + i % 2 : start + i * kPanel + lane;
}

/// The matrix output that source row `o` becomes; see Place. `first` is used by Place::rows only.
constexpr int placed_output(Place place, int first, int o) {
  if (place == Place::rows) return first + o;
  const int pair = o / kPanel * 2 + (place == Place::up ? 1 : 0);
  return pair * kPanel + o % kPanel;
}

}  // namespace troupe::kernels
