#pragma once
// Numbers to codes: rows of x before a product with quantised weights, and weights on their way into a
// matrix.
#include <cstdint>
#include <limits>

#include "kernels/cpu/rows.h"

namespace troupe::kernels {

template <class V>
typename V::F magnitude(typename V::F x) {
  return V::max(x, V::sub(V::set1(0), x));
}

/// x / scale, rounded to the nearest, ties to even, and clamped.
template <class V>
typename V::F code(typename V::F x, typename V::F scale, typename V::F largest) {
  const auto least = V::sub(V::set1(0), largest);
  const auto negated = V::max(V::sub(V::set1(0), V::div(x, scale)), least);
  return V::nearest(V::max(V::sub(V::set1(0), negated), least));
}

template <class V, DType T>
void quantise(const QuantiseArgs& a) {
  using F = typename V::F;
  constexpr int kVectors = kDotInputs / V::kLanes;
  const auto* x = static_cast<const Stored<V, T>*>(a.x);
  std::int8_t* codes = a.codes;
  for (int g = 0; g < a.count / kDotInputs; ++g, x += kDotInputs, codes += kDotInputs) {
    F values[kVectors], largest = V::set1(0);
    bool finite = true;
    for (int v = 0; v < kVectors; ++v) {
      values[v] = load_as_float<V, T>(x + v * V::kLanes);
      finite &= V::all_finite(values[v]);
      largest = V::max(largest, magnitude<V>(values[v]));
    }
    const float scale = finite ? V::max_lanes(largest) / 127.0f : std::numeric_limits<float>::quiet_NaN();
    F sum = V::set1(0);
    for (int v = 0; v < kVectors; ++v) {
      const F code_v = scale > 0 ? code<V>(values[v], V::set1(scale), V::set1(127)) : V::set1(0);
      V::store_codes(codes + v * V::kLanes, code_v);
      sum = V::add(sum, code_v);
    }
    a.groups[g] = {scale, -a.offset * static_cast<std::int32_t>(V::sum_lanes(sum))};
  }
}

template <class V>
float largest_magnitude(const float* weights, std::size_t count) {
  auto largest = V::set1(0);
  bool finite = true;
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    const auto w = V::load(weights + i);
    finite &= V::all_finite(w);
    largest = V::max(largest, magnitude<V>(w));
  }
  return finite ? V::max_lanes(largest) : std::numeric_limits<float>::quiet_NaN();
}

template <class V>
void codes(std::int8_t* to, const float* weights, std::size_t count, float scale, float largest) {
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    V::store_codes(to + i, code<V>(V::load(weights + i), V::set1(scale), V::set1(largest)));
  }
}

}  // namespace troupe::kernels
