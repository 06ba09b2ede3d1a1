#pragma once
// Shapes shared by all ops.
//
// A weight matrix W maps `inputs` numbers to `outputs` numbers, y[o] = sum over i of W[o][i] * x[i]. Its
// bytes lie in the device's own order, which only pack, fill_random, embed and the linear ops know:
//   Cpu: panels of 32 outputs, zero-padded; a panel holds, for each input (bf16: pair of inputs), the
//   32 outputs' weights side by side. So a panel streams from front to back, whatever the
//   instruction set, and any prefix of its inputs is contiguous. Codes: kernels/cpu/tile_quantised.h.
//   Cuda: row-major rows of padded(inputs); see kernels/cuda/product/layout.h.
//
// Activations are row-major with rows of padded(columns) elements. Padding elements are zero: device
// memory starts zeroed, every op that writes an activation writes zeros there, and ops may rely on it.
#include <cstddef>

#include "kernels/weight_format.h"

namespace troupe::kernels {

inline constexpr int kPanel = 32;

constexpr int padded(int columns) { return (columns + kPanel - 1) / kPanel * kPanel; }

struct Matrix {
  void* data =
      nullptr;  ///< matrix_bytes() of device memory: codes or floats, then the scales of a quantised format
  WeightFormat format{};
  int outputs = 0;
  int inputs = 0;

  /// Of the rows that it multiplies.
  constexpr DType activations() const { return format.activations; }
};

/// Inputs of a row with its padding, whose weights are zero. Codes fill whole pieces of 64 bytes and whole
/// groups.
constexpr int padded_inputs(const WeightFormat& format, int inputs) {
  if (format.kind == WeightKind::wint2) return (inputs + kWint2Unit - 1) / kWint2Unit * kWint2Unit;
  const int piece = format.quantised() ? 64 * 8 / format.bits() : kPanel;
  const int group = format.kind == WeightKind::fp8 ? kFp8Block : format.group;
  const int unit = group > piece ? group : piece;
  return (inputs + unit - 1) / unit * unit;
}

/// Device bytes of a packed matrix without its scales; the same on all devices.
constexpr std::size_t weight_bytes(const WeightFormat& format, int outputs, int inputs) {
  return std::size_t(padded(outputs)) * std::size_t(padded_inputs(format, inputs)) *
         std::size_t(format.bits()) / 8;
}

/// Outputs that share an fp8 scale: fewer than kFp8Block, because gate and up outputs alternate.
inline constexpr int kFp8ScaleOutputs = 8;

/// Device bytes of its scales. int8 and int4: a float for each output, or in groups a bf16 for each group and
/// output. fp8: a float for each block of inputs and each kFp8ScaleOutputs outputs, in that order. wint2:
/// three floats for each output, and a byte for each kWint2Unit inputs of an output.
constexpr std::size_t scale_bytes(const WeightFormat& format, int outputs, int inputs) {
  if (!format.quantised()) return 0;
  const auto rows = std::size_t(padded(outputs)), width = std::size_t(padded_inputs(format, inputs));
  if (format.kind == WeightKind::fp8) return rows / kFp8ScaleOutputs * (width / kFp8Block) * 4;
  if (format.kind == WeightKind::wint2) return rows * (3 * sizeof(float) + width / kWint2Unit);
  return format.group == 0 ? rows * 4 : rows * (width / std::size_t(format.group)) * 2;
}

constexpr std::size_t matrix_bytes(const WeightFormat& format, int outputs, int inputs) {
  return weight_bytes(format, outputs, inputs) + scale_bytes(format, outputs, inputs);
}

/// The scales of a quantised matrix, in the device's order.
inline void* scales_of(const Matrix& m) {
  return static_cast<std::byte*>(m.data) + weight_bytes(m.format, m.outputs, m.inputs);
}

/// A gate|up matrix has padded(intermediate) gate rows and as many up rows, interleaved as the device's
/// mlp likes it; outputs counts both. Make one with these, fill it with Place::gate and Place::up.
constexpr int gate_up_outputs(int intermediate) { return 2 * padded(intermediate); }

}  // namespace troupe::kernels
