#include "gpu/cpu.h"
#include "kernels/cpu/routines.h"
#include "kernels/place_rows.h"

namespace troupe::kernels {

void run(Cpu& device, const PlaceRows& op) {
  constexpr int kRowsPerClaim = 16;
  const auto ld = static_cast<std::size_t>(padded(op.cols));
  const auto expand = routines(device.isa()).expand[static_cast<int>(op.dtype)];
  device.pool().for_each(op.count, kRowsPerClaim, [&](int begin, int end, int) {
    const std::size_t first = static_cast<std::size_t>(begin) * ld;
    expand(op.out + first, static_cast<const std::byte*>(op.rows) + first * size_of(op.dtype),
           static_cast<std::size_t>(end - begin) * ld);
  });
}

}  // namespace troupe::kernels
