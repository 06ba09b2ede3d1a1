#pragma once
// The dense feed-forward block.
#include "gpu/device.h"
#include "kernels/add_rms_norm.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// a = silu(gate · x[r]) * (up · x[r]), rounded to the dtype; residual[r] += down · a.
struct Mlp {
  float* residual = nullptr;   ///< (rows, padded(hidden))
  const void* x = nullptr;     ///< (rows, padded(hidden)) of the weights' dtype
  void* activation = nullptr;  ///< (rows, padded(intermediate)) of dtype; scratch
  Matrix gate_up{};            ///< gate_up_outputs(intermediate) outputs, hidden inputs
  Matrix down{};               ///< hidden outputs, intermediate inputs; same dtype
  int rows = 0;
  AddRmsNorm norm{};  ///< if it has a weight, it runs first; its `out` is x
};

void run(Cpu& device, const Mlp& op);
void run(Cuda& device, const Mlp& op);

}  // namespace troupe::kernels
