#include "kernels/dense_tail.h"

namespace troupe::kernels {

void run(Cpu& device, const DenseTail& op) { run_apart(device, op); }

}  // namespace troupe::kernels
