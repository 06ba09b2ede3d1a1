#pragma once
// Running experts of a few rows, behind their routing.
#include "gpu/cuda.h"
#include "kernels/cuda/moe/few.h"
#include "kernels/cuda/moe/layout.h"
#include "kernels/cuda/product/linear.h"

namespace troupe::kernels::cuda {

/// Adds the experts' outputs to op.residual. `layout.few` has to be set. `consumed`: op.x is the first half
/// of that norm, and route() had it too; `produced`: of the sum, for the product behind.
void run_few(Cuda& device, const Moe& op, const MoeLayout& layout, const HalvedNorm& consumed = {},
             const HalvedNorm& produced = {});

}  // namespace troupe::kernels::cuda
