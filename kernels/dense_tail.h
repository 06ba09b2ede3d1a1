#pragma once
// The way from one attention to the next through a dense layer.
#include "gpu/device.h"
#include "kernels/linear_add.h"
#include "kernels/mlp.h"
#include "kernels/qkv_rope_kv_write.h"

namespace troupe::kernels {

/// attention_out, then mlp, then next: three ops one after the other, of the same rows and residual. One op,
/// because a device may begin a norm in the product before it and end it in the one behind it. What the
/// norms' `out` and the mlp's activation hold afterwards is the device's.
struct DenseTail {
  LinearAdd attention_out{};
  Mlp mlp{};              ///< with its norm
  QkvRopeKvWrite next{};  ///< of the next layer, with its norm; without a weight: there is none
};

/// Op by op, as any device can.
template <class D>
void run_apart(D& device, const DenseTail& op) {
  run(device, op.attention_out);
  run(device, op.mlp);
  if (op.next.weight.data != nullptr) run(device, op.next);
}

void run(Cpu& device, const DenseTail& op);
void run(Cuda& device, const DenseTail& op);

}  // namespace troupe::kernels
