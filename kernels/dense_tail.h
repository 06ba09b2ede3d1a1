#pragma once
// The way from one attention to the next through a dense layer.
#include "gpu/device.h"
#include "kernels/linear_add.h"
#include "kernels/mlp.h"
#include "kernels/qkv_rope_kv_write.h"

namespace troupe::kernels {

/// attention_out, then mlp, then next: three ops one after the other, of the same rows and residual. One op,
/// because a device that keeps the residual stream at hand between them saves most of their time when the
/// rows are few.
struct DenseTail {
  LinearAdd attention_out{};
  Mlp mlp{};              ///< with its norm
  QkvRopeKvWrite next{};  ///< of the next layer, with its norm; without a weight: there is none
};

void run(Cpu& device, const DenseTail& op);
void run(Cuda& device, const DenseTail& op);

}  // namespace troupe::kernels
