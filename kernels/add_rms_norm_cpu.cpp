#include "kernels/add_rms_norm.h"

#include "base/check.h"
#include "gpu/cpu.h"
#include "kernels/cpu/routines.h"

namespace troupe::kernels {
namespace {

constexpr int kNormRowsPerClaim = 8;

}  // namespace

void run(Cpu& device, const AddRmsNorm& op) {
  TROUPE_CHECK(op.add == nullptr || op.pick == nullptr);
  const auto norm = routines(device.isa()).norm[static_cast<int>(op.dtype)];
  const auto ld = static_cast<std::size_t>(padded(op.cols));
  device.pool().for_each(op.rows, kNormRowsPerClaim, [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) {
      const auto from = static_cast<std::size_t>(op.pick != nullptr ? op.pick[r] : r) * ld;
      const auto at = static_cast<std::size_t>(r) * ld;
      norm({.out = static_cast<std::byte*>(op.out) + at * size_of(op.dtype),
            .h = op.residual + from,
            .add = op.add != nullptr ? op.add + at : nullptr,
            .weight = op.weight,
            .cols = op.cols,
            .eps = op.eps});
    }
  });
}

}  // namespace troupe::kernels
