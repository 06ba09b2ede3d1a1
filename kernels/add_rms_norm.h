#pragma once
// RMSNorm, with the residual addition before it where the device does not fuse it elsewhere.
#include <cstddef>
#include <cstdint>

#include "gpu/device.h"
#include "gpu/dtype.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// h = residual[pick ? pick[r] : r] (+ add[r], written back)
/// out[r] = cast(cast(h / sqrt(mean(h^2) + eps)) * weight), cast rounding to `dtype`.
struct AddRmsNorm {
  void* out = nullptr;                 ///< (rows, padded(cols)) of dtype; null if only codes are wanted
  float* residual = nullptr;           ///< (…, padded(cols))
  const float* add = nullptr;          ///< (rows, padded(cols)), or null; not together with pick
  const float* weight = nullptr;       ///< (padded(cols)), values representable in dtype
  const std::int32_t* pick = nullptr;  ///< (rows) rows of `residual` to read, or null for all in order
  DType dtype = DType::bf16;
  int rows = 0;
  int cols = 0;
  float eps = 1e-5f;
  std::uint8_t* codes = nullptr;  ///< Cuda alone: QuantiseRows::codes of `out`; null: not wanted
  float* scales = nullptr;        ///< with codes: QuantiseRows::scales
};

/// Of `out`, padding included.
inline std::size_t numbers_in(const AddRmsNorm& op) {
  return static_cast<std::size_t>(op.rows) * static_cast<std::size_t>(padded(op.cols));
}

void run(Cpu& device, const AddRmsNorm& op);
void run(Cuda& device, const AddRmsNorm& op);

}  // namespace troupe::kernels
