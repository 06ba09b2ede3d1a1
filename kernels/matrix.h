#pragma once
// Shapes shared by all ops.
//
// A weight matrix W maps `inputs` numbers to `outputs` numbers, y[o] = sum over i of W[o][i] * x[i]. Its
// bytes lie in the device's own order, which only pack, fill_random, embed and the linear ops know:
//   Cpu: panels of 32 outputs, zero-padded; a panel holds, for each input (bf16: pair of inputs), the
//   32 outputs' weights side by side. So a panel streams from front to back, whatever the
//   instruction set, and any prefix of its inputs is contiguous.
//   Cuda: row-major rows of padded(inputs); see kernels/cuda/product/layout.h.
//
// Activations are row-major with rows of padded(columns) elements. Padding elements are zero: device
// memory starts zeroed, every op that writes an activation writes zeros there, and ops may rely on it.
#include <cstddef>

#include "gpu/dtype.h"

namespace troupe::kernels {

inline constexpr int kPanel = 32;

constexpr int padded(int columns) { return (columns + kPanel - 1) / kPanel * kPanel; }

struct Matrix {
  void* data = nullptr;  ///< matrix_bytes() of device memory
  DType dtype = DType::bf16;
  int outputs = 0;
  int inputs = 0;
};

/// Device bytes of a packed matrix; the same on all devices.
constexpr std::size_t matrix_bytes(DType dtype, int outputs, int inputs) {
  return std::size_t(padded(outputs)) * std::size_t(padded(inputs)) * size_of(dtype);
}

/// A gate|up matrix has padded(intermediate) gate rows and as many up rows, interleaved as the device's
/// mlp likes it; outputs counts both. Make one with these, fill it with Place::gate and Place::up.
constexpr int gate_up_outputs(int intermediate) { return 2 * padded(intermediate); }

}  // namespace troupe::kernels
