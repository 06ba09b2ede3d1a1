#include "kernels/dense_tail.h"

namespace troupe::kernels {

void run(Cpu& device, const DenseTail& op) {
  run(device, op.attention_out);
  run(device, op.mlp);
  if (op.next.weight.data != nullptr) run(device, op.next);
}

}  // namespace troupe::kernels
