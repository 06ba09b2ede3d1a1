#pragma once
// All ops between one layer's attention and the next layer's attention, for a dense layer.
#include "gpu/device.h"
#include "kernels/linear_add.h"
#include "kernels/mlp.h"
#include "kernels/qkv_rope_kv_write.h"

namespace troupe::kernels {

/// Runs attention_out, then mlp, then next, on the same rows and residual stream. They are one op because a
/// device may compute a norm partly in the product before it and partly in the product after it. Afterwards
/// the contents of the norms' `out` and of the mlp's activation are unspecified.
struct DenseTail {
  LinearAdd attention_out{};
  Mlp mlp{};              ///< with its norm
  QkvRopeKvWrite next{};  ///< of the next layer, with its norm; no weight: there is no next layer
};

/// Runs the three ops one by one; works on any device.
template <class D>
void run_apart(D& device, const DenseTail& op) {
  run(device, op.attention_out);
  run(device, op.mlp);
  if (op.next.weight.data != nullptr) run(device, op.next);
}

void run(Cpu& device, const DenseTail& op);
void run(Cuda& device, const DenseTail& op);

}  // namespace troupe::kernels
