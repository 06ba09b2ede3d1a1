#pragma once
// Rows of the embedding table.
#include "base/ids.h"
#include "gpu/device.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// out[r] = table[tokens[r]], as fp32: the residual stream. A tied lm_head shares `table`.
struct Embed {
  float* out = nullptr;             ///< (rows, padded(table.inputs))
  const TokenId* tokens = nullptr;  ///< (rows), each in [0, table.outputs)
  Matrix table{};                   ///< vocab outputs, hidden inputs
  int rows = 0;
};

void run(Cpu& device, const Embed& op);
void run(Cuda& device, const Embed& op);

}  // namespace troupe::kernels
