#pragma once
// The grouped products of a decode batch: every expert's weights once, at the speed of the memory.
#include "kernels/cuda/linear.h"

namespace troupe::kernels::cuda {

struct Experts {
  Linear linear{};     ///< grouped; ending swiglu or store_scaled
  int shared = 0;      ///< the last so many groups have all rows of the batch that count
  int batch_rows = 0;  ///< no group has more rows
  /// The offsets were written before the kernel that precedes this one was let start: weights may be fetched
  /// by them while it runs.
  bool settled = false;
};

inline constexpr int kMostExpertRows = 256;

/// bf16 on Hopper, at most kMostExpertRows rows of the batch.
bool experts_take(const Cuda& device, const Experts& experts);

/// Its own next kernel may read what was complete before it (`settled`).
void run_experts(Cuda& device, const Experts& experts);

}  // namespace troupe::kernels::cuda
