#include "kernels/moe_tail.h"

namespace troupe::kernels {

void run(Cpu& device, const MoeTail& op) { run_apart(device, op); }

}  // namespace troupe::kernels
