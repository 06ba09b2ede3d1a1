#pragma once
// Products of up to eight rows whose weights nearly fit the shared memory of the GPU; for the chooser, the
// tests and the bench.
#include "kernels/cuda/linear.h"

namespace troupe::kernels::cuda {

inline constexpr int kStripRows = 8;  ///< of x, at most

/// How it is cut.
struct StripPlan {
  int height = 0;  ///< outputs of a block: a multiple of 4, of gate|up one of 16; 0: not for strips
};

/// Dense products of 16-bit types on Hopper, with few enough rows, inputs and outputs. Says nothing of
/// batch_invariant(), under which a product must not depend on the number of rows.
StripPlan strip_plan(const Cuda& device, const Linear& linear);

/// `linear.norm` may be there; then its inputs are few enough too.
void run_strips(Cuda& device, const Linear& linear, const StripPlan& plan);

}  // namespace troupe::kernels::cuda
