#include <algorithm>

#include "gpu/cpu.h"
#include "kernels/cpu/routines.h"
#include "kernels/normalise_patches.h"

namespace troupe::kernels {

void fill_pixel_table(float* table) {
  constexpr float kMean[] = {0.48145466f, 0.4578275f, 0.40821073f};
  constexpr float kDeviation[] = {0.26862954f, 0.26130258f, 0.27577711f};
  for (int colour = 0; colour < 3; ++colour) {
    for (int v = 0; v < 256; ++v)
      table[colour * 256 + v] = (static_cast<float>(v) / 255 - kMean[colour]) / kDeviation[colour];
  }
}

void run(Cpu& device, const NormalisePatches& op) {
  constexpr int kPlane = kPatchBytes / 3, kWidth = padded(kPatchBytes), kRowsPerClaim = 16;
  const auto narrow = routines(device.isa()).narrow[static_cast<int>(op.dtype)];
  device.pool().for_each(op.rows, kRowsPerClaim, [&](int begin, int end, int) {
    alignas(64) float row[kWidth];
    std::fill(row + kPatchBytes, row + kWidth, 0.0f);
    for (int r = begin; r < end; ++r) {
      const std::uint8_t* patch = op.patches + static_cast<std::size_t>(r) * kPatchBytes;
      for (int i = 0; i < kPatchBytes; ++i) row[i] = op.table[i / kPlane * 256 + patch[i]];
      narrow(static_cast<std::byte*>(op.out) + static_cast<std::size_t>(r) * kWidth * size_of(op.dtype), row,
             kWidth);
    }
  });
}

}  // namespace troupe::kernels
