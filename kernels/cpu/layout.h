#pragma once
// Where an element of a packed matrix lies: for ops that touch elements, not panels.
#include <cstddef>

#include "base/check.h"
#include "kernels/matrix.h"
#include "kernels/pack.h"

namespace troupe::kernels {

/// Bytes of one panel of 32 outputs.
constexpr std::size_t panel_bytes(DType dtype, int inputs) {
  return kPanel * static_cast<std::size_t>(inputs + inputs % 2) * size_of(dtype);
}

/// Index of weight (output, input) in the elements of a packed matrix.
constexpr std::size_t packed_index(DType dtype, int inputs, int output, int input) {
  const auto panel = static_cast<std::size_t>(output / kPanel);
  const auto lane = static_cast<std::size_t>(output % kPanel);
  const auto i = static_cast<std::size_t>(input);
  const std::size_t start = panel * kPanel * static_cast<std::size_t>(inputs + inputs % 2);
  return dtype == DType::bf16 ? start + i / 2 * 2 * kPanel + lane * 2 + i % 2 : start + i * kPanel + lane;
}

/// The output that row `o` of a source becomes; see Place.
constexpr int placed_output(Place place, int first, int o) {
  if (place == Place::rows) return first + o;
  const int pair = o / kPanel * 2 + (place == Place::up ? 1 : 0);
  return pair * kPanel + o % kPanel;
}

}  // namespace troupe::kernels
