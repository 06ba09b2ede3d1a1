#pragma once
// All ops between one layer's attention and the next layer's attention, for a layer with experts.
#include <utility>

#include "gpu/device.h"
#include "kernels/linear_add.h"
#include "kernels/moe.h"
#include "kernels/qkv_rope_kv_write.h"

namespace troupe::kernels {

/// As DenseTail: one op, because a device may compute a norm partly in the product before it and partly in
/// the product after it.
struct MoeTail {
  LinearAdd attention_out{};
  Moe moe{};              ///< with its norm; no next_norm
  QkvRopeKvWrite next{};  ///< of the next layer, with its norm; no weight: there is no next layer
};

/// Runs the three ops one by one; works on any device.
template <class D>
void run_apart(D& device, const MoeTail& op) {
  run(device, op.attention_out);
  Moe moe = op.moe;
  QkvRopeKvWrite next = op.next;
  // Codes of x belong to the product that reads them, so that fp8 weights have the norm to themselves.
  if (next.norm.weight != nullptr && !next.weight.format.fp8()) moe.next_norm = std::exchange(next.norm, {});
  run(device, moe);
  if (next.weight.data != nullptr) run(device, next);
}

void run(Cpu& device, const MoeTail& op);
void run(Cuda& device, const MoeTail& op);

}  // namespace troupe::kernels
