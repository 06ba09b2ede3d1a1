#pragma once
// Embeddings that do not come from the table.
#include "gpu/device.h"
#include "gpu/dtype.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// out[r] = rows[r] as fp32, for `count` rows: what a vision tower made, into the residual stream.
struct PlaceRows {
  float* out = nullptr;        ///< (count, padded(cols))
  const void* rows = nullptr;  ///< (count, padded(cols)) of dtype
  DType dtype = DType::bf16;
  int count = 0;
  int cols = 0;
};

void run(Cpu& device, const PlaceRows& op);
void run(Cuda& device, const PlaceRows& op);

}  // namespace troupe::kernels
