#pragma once
// The rules of quantize.h and quantize_kv.h in device code: a warp's scale, and codes.
#include <cuda_fp8.h>

#include <cstdint>

namespace troupe::kernels::cuda {

/// The bits of a magnitude order as it does; those of an infinity or a NaN are the largest.
__device__ __forceinline__ unsigned magnitude_bits(float number) {
  return __float_as_uint(number) & 0x7fffffffu;
}

/// The largest magnitude of the numbers of `Lanes` neighbouring lanes in each of them; a NaN if one of them
/// is not finite. Lanes is a power of two; the whole warp calls it.
template <int Lanes = 32>
__device__ __forceinline__ float warp_magnitude(unsigned largest_bits) {
#pragma unroll
  for (int step = 1; step < Lanes; step *= 2)
    largest_bits = max(largest_bits, __shfl_xor_sync(~0u, largest_bits, step));
  return __uint_as_float(largest_bits < 0x7f800000u ? largest_bits : 0x7fc00000u);
}

/// Of int8 and int4.
__device__ __forceinline__ int integer_code(float number, float scale, float largest) {
  if (!(scale > 0)) return 0;
  return __float2int_rn(fminf(fmaxf(__fdiv_rn(number, scale), -largest), largest));
}

/// e4m3 codes of four numbers, the first in the lowest byte.
__device__ __forceinline__ std::uint32_t fp8_codes(float a, float b, float c, float d, float scale) {
  if (!(scale > 0)) return 0;
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(__fdiv_rn(a, scale), __fdiv_rn(b, scale)),
                                                     __NV_SATFINITE, __NV_E4M3);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(__fdiv_rn(c, scale), __fdiv_rn(d, scale)),
                                                      __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

}  // namespace troupe::kernels::cuda
