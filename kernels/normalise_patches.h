#pragma once
// Pixels of patches as numbers.
#include <cstdint>

#include "base/patch_grid.h"
#include "gpu/device.h"
#include "gpu/dtype.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// Values of a byte, for each of three colours.
inline constexpr int kPixelTable = 3 * 256;

/// table[c][v] = (v / 255 - mean_c) / deviation_c in fp32, with the means and deviations of CLIP's training
/// images, as ERNIE-4.5-VL was trained. Host memory.
void fill_pixel_table(float* table);

/// out[r][i] = table[colour of i][patches[r][i]], rounded to dtype.
struct NormalisePatches {
  void* out = nullptr;                    ///< (rows, padded(kPatchBytes)) of dtype
  const std::uint8_t* patches = nullptr;  ///< (rows, kPatchBytes), not padded
  const float* table = nullptr;           ///< (3, 256)
  DType dtype = DType::bf16;
  int rows = 0;
};

void run(Cpu& device, const NormalisePatches& op);
void run(Cuda& device, const NormalisePatches& op);

}  // namespace troupe::kernels
