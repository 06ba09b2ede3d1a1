#include "kernels/cpu/static_inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/quantiser.h"
#include "kernels/quantize.h"

namespace troupe::kernels {
namespace {

/// Half away from zero.
int rounded(float x) {
  const int whole = static_cast<int>(x);
  const float rest = x - static_cast<float>(whole);  // exact
  return whole + (rest >= 0.5f ? 1 : rest <= -0.5f ? -1 : 0);
}

}  // namespace

void quantise_static(std::byte* row, const float* x, std::size_t count, StaticInput by) {
  auto* codes = reinterpret_cast<std::int8_t*>(row);
  auto* groups = reinterpret_cast<OperandGroup*>(row + count);
  for (std::size_t first = 0; first < count; first += kDotInputs) {
    int sum = 0;
    bool finite = true;
    for (std::size_t i = first; i < first + kDotInputs; ++i) {
      finite &= std::isfinite(x[i]);
      const float scaled = std::isfinite(x[i]) ? x[i] * by.to_codes : 0.0f;
      const int code = rounded(std::clamp(scaled, -kLargestInt8, kLargestInt8));
      codes[i] = static_cast<std::int8_t>(code);
      sum += code;
    }
    groups[first / kDotInputs] = {finite ? by.of_sums : std::numeric_limits<float>::quiet_NaN(),
                                  -code_offset(WeightKind::int4) * sum};
  }
}

void round_to(const Routines& r, DType dtype, float* x, std::size_t count) {
  TROUPE_CHECK(count <= kHadamardBlock);
  if (dtype == DType::f32) return;
  alignas(64) std::uint16_t narrowed[kHadamardBlock];
  r.narrow[static_cast<int>(dtype)](narrowed, x, count);
  r.expand[static_cast<int>(dtype)](x, narrowed, count);
}

void rotate_blocks(const Routines& r, DType dtype, float* x, std::size_t count) {
  TROUPE_CHECK(count % kHadamardBlock == 0);
  for (float* block = x; block < x + count; block += kHadamardBlock) {
    for (int stride = 1; stride < kHadamardBlock; stride *= 2) {
      for (int pair = 0; pair < kHadamardBlock; pair += 2 * stride) {
        for (int i = pair; i < pair + stride; ++i) {
          const float a = block[i], b = block[i + stride];
          block[i] = a + b;
          block[i + stride] = a - b;
        }
      }
      round_to(r, dtype, block, kHadamardBlock);
    }
  }
}

}  // namespace troupe::kernels
