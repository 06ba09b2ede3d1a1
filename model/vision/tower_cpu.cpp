#include <cstring>

#include "gpu/cpu.h"
#include "model/vision/tower.inl"

namespace troupe::model {

void copy_lines(Cpu&, std::byte* to, const std::byte* from, const kernels::MemoryLines& lines) {
  for (std::size_t i = 0; i < lines.count; ++i)
    std::memcpy(to + i * lines.stride, from + i * lines.stride, lines.bytes);
}

template class VisionTower<Cpu>;

}  // namespace troupe::model
