#pragma once
// The rules of quantize.h and quantize_kv.h in device code: a warp's scale, and codes.
#include <cstdint>

namespace troupe::kernels::cuda {

/// The bits of a magnitude order as it does; those of an infinity or a NaN are the largest.
__device__ __forceinline__ unsigned magnitude_bits(float number) {
  return __float_as_uint(number) & 0x7fffffffu;
}

/// The largest magnitude of a warp's numbers in all lanes; a NaN if one of them is not finite.
__device__ __forceinline__ float warp_magnitude(unsigned largest_bits) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2)
    largest_bits = max(largest_bits, __shfl_xor_sync(~0u, largest_bits, step));
  return __uint_as_float(largest_bits < 0x7f800000u ? largest_bits : 0x7fc00000u);
}

/// Of int8 and int4.
__device__ __forceinline__ int integer_code(float number, float scale, float largest) {
  if (!(scale > 0)) return 0;
  return __float2int_rn(fminf(fmaxf(__fdiv_rn(number, scale), -largest), largest));
}

}  // namespace troupe::kernels::cuda
