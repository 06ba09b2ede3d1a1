#pragma once
// Passes over one row of logits or sampling weights. Passes over integers are plain loops: the compiler
// vectorises them, and the result does not depend on how it does so.
#include <limits>

#include "kernels/cpu/math.h"
#include "kernels/cpu/routines.h"
#include "kernels/sampling_weight.h"

namespace troupe::kernels {

/// One vector of logits from index `at`; lanes at or past `count` are `filler`.
template <class V>
typename V::F load_or_fill(const float* logits, int count, int at, float filler) {
  if (at + V::kLanes <= count) return V::load(logits + at);
  float lanes[V::kLanes];
  for (int i = 0; i < V::kLanes; ++i) lanes[i] = at + i < count ? logits[at + i] : filler;
  return V::load(lanes);
}

template <class V>
Peak peak(const float* logits, int count) {
  using F = typename V::F;
  F largest = V::set1(logits[0]);
  bool finite = true;
  for (int i = 0; i < count; i += V::kLanes) {
    const F x = load_or_fill<V>(logits, count, i, logits[0]);
    finite &= V::all_finite(x);
    largest = V::max(largest, x);
  }
  return {V::max_lanes(largest), finite};
}

template <class V>
int find(const float* logits, int count, float value) {
  constexpr int kBlock = 64;
  for (int begin = 0; begin < count; begin += kBlock) {
    const int end = begin + kBlock < count ? begin + kBlock : count;
    int found = 0;
    for (int i = begin; i < end; ++i) found |= logits[i] == value;
    if (found == 0) continue;
    for (int i = begin; i < end; ++i) {
      if (logits[i] == value) return i;
    }
  }
  return count;
}

/// Sets the logits whose bit is 0 to -infinity. Most words have all bits or none: these touch no logit, or
/// whole vectors.
template <class V>
void mask(float* logits, const std::uint32_t* words, int count) {
  constexpr int kBits = 32;
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int begin = 0; begin < count; begin += kBits) {
    const std::uint32_t word = words[begin / kBits];
    if (word == ~0u) continue;
    const int length = begin + kBits <= count ? kBits : count - begin;
    float* z = logits + begin;
    if (word == 0) {
      for (int i = 0; i < length; ++i) z[i] = kNever;
    } else if (length == kBits) {
      for (int i = 0; i < kBits; ++i) z[i] = (word >> i & 1) != 0 ? z[i] : kNever;
    } else {
      for (int i = 0; i < length; ++i) z[i] = (word >> i & 1) != 0 ? z[i] : kNever;
    }
  }
}

template <class V>
double sum_exp(const float* logits, int count, float largest) {
  using F = typename V::F;
  constexpr int kBlock = 512;
  const F top = V::set1(largest);
  double total = 0;
  for (int begin = 0; begin < count; begin += kBlock) {
    const int end = begin + kBlock < count ? begin + kBlock : count;
    F sum = V::set1(0);
    for (int i = begin; i < end; i += V::kLanes) {
      const F x = load_or_fill<V>(logits, count, i, -std::numeric_limits<float>::infinity());
      sum = V::add(sum, exp_of<V>(V::sub(x, top)));
    }
    total += static_cast<double>(V::sum_lanes(sum));
  }
  return total;
}

/// weights[i] = the sampling weight of logits[i], bit for bit as sampling_weight.h defines it.
template <class V>
void weigh(std::uint32_t* weights, const float* logits, int count, float largest, float scale) {
  using F = typename V::F;
  const F top = V::set1(largest);
  const F factor = V::set1(scale);
  const F half = V::set1(0.5f);
  for (int i = 0; i < count; i += V::kLanes) {
    const F z = load_or_fill<V>(logits, count, i, largest);
    const F t = V::max(V::mul(V::sub(z, top), factor), V::set1(kLowestPower));
    const F n = V::nearest(t);
    const F f = V::sub(t, n);
    F p = V::set1(kPowerOfTwo[5]);
    for (int j = 4; j >= 0; --j) p = V::add(V::mul(p, f), V::set1(kPowerOfTwo[j]));
    p = V::add(V::mul(p, f), V::set1(1));
    const F weight = V::add(V::scale_by_power(p, V::add(n, V::set1(kWeightBits))), half);
    if (i + V::kLanes <= count) {
      V::store_int(weights + i, weight);
    } else {
      std::uint32_t lanes[V::kLanes];
      V::store_int(lanes, weight);
      for (int j = 0; i + j < count; ++j) weights[i + j] = lanes[j];
    }
  }
}

template <class V>
void tally(const std::uint32_t* weights, int count, std::uint32_t threshold, std::uint64_t* number,
           std::uint64_t* sum) {
  constexpr int kBlock = 8192;  // the sum of this many 16-bit halves fits in 32 bits
  *number = 0;
  *sum = 0;
  for (int begin = 0; begin < count; begin += kBlock) {
    const int end = begin + kBlock < count ? begin + kBlock : count;
    std::uint32_t kept = 0, low = 0, high = 0;
    for (int i = begin; i < end; ++i) {
      const std::uint32_t w = weights[i] >= threshold ? weights[i] : 0;
      kept += weights[i] >= threshold;
      low += w & 0xffffu;
      high += w >> 16;
    }
    *number += kept;
    *sum += (std::uint64_t{high} << 16) + low;
  }
}

template <class V>
int collect(std::uint32_t* to, const std::uint32_t* weights, int count, std::uint32_t low,
            std::uint32_t high) {
  int found = 0, i = 0;
  if constexpr (requires { V::compress_range(to, weights, low, high); }) {
    // A whole vector is stored at to + found; found <= i, so it stays inside `to`.
    for (; i + V::kLanes <= count; i += V::kLanes)
      found += V::compress_range(to + found, weights + i, low, high);
  }
  for (; i < count; ++i) {
    to[found] = weights[i];
    found += weights[i] >= low && weights[i] < high;
  }
  return found;
}

template <class V>
int next_above(const float* logits, int count, int from, float limit) {
  const typename V::F bar = V::set1(limit);
  for (int i = from; i < count; i += V::kLanes) {
    if (!V::any_above(load_or_fill<V>(logits, count, i, limit), bar)) continue;
    for (int j = i; j < count && j < i + V::kLanes; ++j) {
      if (logits[j] > limit) return j;
    }
  }
  return count;
}

}  // namespace troupe::kernels
