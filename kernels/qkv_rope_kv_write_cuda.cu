#include "kernels/qkv_rope_kv_write.h"

#include "base/check.h"
#include "kernels/cuda/product/linear.h"

namespace troupe::kernels {

cuda::Linear cuda::linear_of(const QkvRopeKvWrite& op) {
  TROUPE_CHECK(op.kv.dtype == op.weight.activations() && op.kv.head_dim % 2 == 0);
  TROUPE_CHECK(op.weight.outputs == (op.heads + 2 * op.kv.kv_heads) * op.kv.head_dim);
  return {.weight = op.weight,
          .x = op.x,
          .rows = op.batch.rows,
          .norm = op.norm,
          .ending = Ending::qkv,
          .q = op.q,
          .rope = op.rope,
          .kv = op.kv,
          .layer = op.layer,
          .heads = op.heads,
          .slots = op.batch.slots};
}

void run(Cuda& device, const QkvRopeKvWrite& op) { cuda::run(device, cuda::linear_of(op)); }

}  // namespace troupe::kernels
