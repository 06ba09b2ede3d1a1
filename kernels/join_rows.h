#pragma once
// Several rows as one: what merges neighbouring patches, and two frames.
#include "gpu/device.h"
#include "gpu/dtype.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// out[r] = x[r * step] | x[r * step + stride] | …, `parts` rows one after the other without padding between.
struct JoinRows {
  void* out = nullptr;      ///< (rows, padded(parts * cols)) of dtype
  const void* x = nullptr;  ///< (…, padded(cols)) of dtype
  DType dtype = DType::bf16;
  int rows = 0;
  int cols = 0;
  int parts = 1;
  int step = 1;
  int stride = 0;
};

void run(Cpu& device, const JoinRows& op);
void run(Cuda& device, const JoinRows& op);

}  // namespace troupe::kernels
