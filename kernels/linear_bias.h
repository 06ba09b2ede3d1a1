#pragma once
// A projection with a bias, of the vision tower and the resampler.
#include <cstdint>

#include "gpu/device.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// What becomes of y = weight · x[r] + bias.
enum class BiasEnding : std::uint8_t {
  store,       ///< out = cast(y)
  quick_gelu,  ///< out = cast(y / (1 + exp(-1.702 y)))
  gelu,        ///< out = cast(y (1 + erf(y / √2)) / 2)
  set,         ///< sum = y
  add,         ///< sum += y
};

/// The product is summed in fp32; cast rounds to the weight's dtype, once.
struct LinearBias {
  void* out = nullptr;          ///< store and the activations: (rows, padded(weight.outputs)) of its dtype
  float* sum = nullptr;         ///< set, add: (rows, padded(weight.outputs))
  const void* x = nullptr;      ///< (rows, padded(weight.inputs)) of weight.activations()
  Matrix weight{};              ///< not quantised
  const float* bias = nullptr;  ///< (padded(weight.outputs)), zero in the padding; null: none
  int rows = 0;
  BiasEnding ending = BiasEnding::store;
};

void run(Cpu& device, const LinearBias& op);
void run(Cuda& device, const LinearBias& op);

}  // namespace troupe::kernels
