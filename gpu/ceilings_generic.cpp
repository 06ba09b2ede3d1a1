// For CPUs other than x86-64: what the compiler makes of plain loops.
#include "gpu/ceiling_loops.h"

namespace troupe {
namespace {

constexpr std::int64_t kRounds = 400'000;

// Twelve independent sums hide the latency; the volatile value keeps the compiler from computing them itself.
void muls_and_adds() {
  typedef float V __attribute__((vector_size(16)));
  volatile float half = 0.5f;
  const float h = half;
  const V a = {h, h, h, h};
  V sum[12] = {};
  for (std::int64_t i = 0; i < 2 * kRounds; ++i) {
    for (V& s : sum) s = s * a + a;
  }
  for (const V& s : sum) half = s[0];
}

}  // namespace

ReadLoop read_loop(Isa) { return read_64; }

DotLoop dot_loop(Isa) { return {muls_and_adds, 2.0 * static_cast<double>(kRounds) * 12 * 8}; }

DotLoop int8_dot_loop(Isa isa) { return dot_loop(isa); }

}  // namespace troupe
