#include "gpu/cuda.h"
#include "model/vision/tower.inl"

namespace troupe::model {

void copy_lines(Cuda& device, std::byte* to, const std::byte* from, const kernels::MemoryLines& lines) {
  if (lines.count == 1) return device.copy(to, from, lines.bytes);
  device.copy_rows(to, lines.stride, from, lines.stride, lines.bytes, lines.count);
}

template class VisionTower<Cuda>;

}  // namespace troupe::model
