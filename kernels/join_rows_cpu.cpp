#include <cstring>

#include "gpu/cpu.h"
#include "kernels/join_rows.h"

namespace troupe::kernels {

void run(Cpu& device, const JoinRows& op) {
  constexpr int kRowsPerClaim = 16;
  const auto size = size_of(op.dtype);
  const std::size_t part = static_cast<std::size_t>(op.cols) * size;
  const std::size_t pitch = static_cast<std::size_t>(padded(op.cols)) * size;
  const std::size_t width = static_cast<std::size_t>(padded(op.parts * op.cols)) * size;
  const std::size_t whole = part * static_cast<std::size_t>(op.parts);
  device.pool().for_each(op.rows, kRowsPerClaim, [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) {
      auto* to = static_cast<std::byte*>(op.out) + static_cast<std::size_t>(r) * width;
      for (int p = 0; p < op.parts; ++p) {
        const auto row = static_cast<std::size_t>(r) * static_cast<std::size_t>(op.step) +
                         static_cast<std::size_t>(p) * static_cast<std::size_t>(op.stride);
        std::memcpy(to + static_cast<std::size_t>(p) * part,
                    static_cast<const std::byte*>(op.x) + row * pitch, part);
      }
      std::memset(to + whole, 0, width - whole);
    }
  });
}

}  // namespace troupe::kernels
