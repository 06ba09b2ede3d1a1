#pragma once
// Rows of the embedding table.
#include "base/ids.h"
#include "gpu/device.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// out[r] = table[tokens[r] - first], as fp32: the residual stream; zeros for tokens that the table does not
/// have. A tied lm_head shares `table`.
struct Embed {
  float* out = nullptr;             ///< (rows, padded(table.inputs))
  const TokenId* tokens = nullptr;  ///< (rows)
  Matrix table{};                   ///< vocab outputs, hidden inputs
  int rows = 0;
  int first = 0;  ///< token of the table's first row
};

void run(Cpu& device, const Embed& op);
void run(Cuda& device, const Embed& op);

}  // namespace troupe::kernels
