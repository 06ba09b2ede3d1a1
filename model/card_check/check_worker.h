#pragma once
// The process that runs the checks of kernels/check/ on a GPU: `troupe check-gpu --worker`.
#include <cstdio>
#include <functional>
#include <vector>

#include "gpu/kernel_ways.h"
#include "kernels/check/kernel_check.h"

namespace troupe::model {

struct CheckOrder {
  int ordinal = 0;     ///< of the GPU
  int first = 0;       ///< index of the first check to run; those before it are done
  KernelWays avoided;  ///< kernels to do without
};

/// Runs the checks in order and writes a CheckLine for each event to `out`, flushed at once. The exit status:
/// 0 if all have run, whatever they found; 1 if the GPU is of no further use, behind the line that says so.
int run_checks(const CheckOrder& order, const std::vector<kernels::check::KernelCheck>& checks,
               std::FILE* out);

}  // namespace troupe::model
