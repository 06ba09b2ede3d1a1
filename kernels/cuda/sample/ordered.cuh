#pragma once
// The order in which logits are taken.
#include <cuda_runtime.h>

namespace troupe::kernels::cuda {

// A logit and its id as one number whose order is the sampler's: larger logits are larger, and among equal
// logits lower ids are. +0 and -0 are equal. 0 means none; kNotFinite is larger than all others.

inline constexpr unsigned long long kNotFinite = ~0ull;

__device__ __forceinline__ unsigned long long ordered(float logit, int id) {
  const unsigned bits = __float_as_uint(__fadd_rn(logit, 0.0f));
  const unsigned key = bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
  return static_cast<unsigned long long>(key) << 32 | static_cast<unsigned>(~id);
}

__device__ __forceinline__ int id_of(unsigned long long ordered) {
  return static_cast<int>(~static_cast<unsigned>(ordered));
}

__device__ __forceinline__ float logit_of(unsigned long long ordered) {
  const auto key = static_cast<unsigned>(ordered >> 32);
  return __uint_as_float(key ^ (key >> 31 != 0 ? 0x80000000u : 0xffffffffu));
}

}  // namespace troupe::kernels::cuda
