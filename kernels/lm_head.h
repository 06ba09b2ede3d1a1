#pragma once
// Logits of the rows that sample.
#include "gpu/device.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// logits[r][v] = weight[v] · x[r] in fp32; no rounding after the sum.
struct LmHead {
  float* logits = nullptr;  ///< (rows, padded(weight.outputs))
  const void* x =
      nullptr;      ///< (rows, padded(weight.inputs)) of weight.activations(); normed, sampling rows only
  Matrix weight{};  ///< vocab outputs, hidden inputs; the embedding table when tied
  int rows = 0;
};

void run(Cpu& device, const LmHead& op);
void run(Cuda& device, const LmHead& op);

}  // namespace troupe::kernels
