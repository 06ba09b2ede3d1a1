#pragma once
// A projection that ends in the residual stream: o_proj, down_proj.
#include "gpu/device.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// residual[r] += weight · x[r], sum in fp32.
struct LinearAdd {
  float* residual = nullptr;  ///< (rows, padded(weight.outputs))
  const void* x = nullptr;    ///< (rows, padded(weight.inputs)) of weight.activations()
  Matrix weight{};
  int rows = 0;
};

void run(Cpu& device, const LinearAdd& op);
void run(Cuda& device, const LinearAdd& op);

}  // namespace troupe::kernels
