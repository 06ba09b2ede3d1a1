#pragma once
// LayerNorm, of the vision tower and the resampler.
#include "gpu/device.h"
#include "gpu/dtype.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// out[r] = cast((x[r] - mean(x[r])) / sqrt(variance(x[r]) + eps) * weight + bias); one rounding, to dtype.
struct LayerNorm {
  void* out = nullptr;            ///< (rows, padded(cols)) of dtype
  const float* x = nullptr;       ///< (rows, padded(cols))
  const float* weight = nullptr;  ///< (padded(cols))
  const float* bias = nullptr;    ///< (padded(cols)), zero in the padding
  DType dtype = DType::bf16;
  int rows = 0;
  int cols = 0;
  float eps = 0;
};

void run(Cpu& device, const LayerNorm& op);
void run(Cuda& device, const LayerNorm& op);

}  // namespace troupe::kernels
