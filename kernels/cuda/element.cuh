#pragma once
// Device types of the dtypes, conversions, and the dispatch from a host DType to a template argument.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <utility>

#include "gpu/dtype.h"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda {

using Bf16 = __nv_bfloat16;
using F16 = __half;
struct E4m3 {
  std::uint8_t bits;
};

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(Bf16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(F16 value) { return __half2float(value); }
__device__ __forceinline__ float to_float(E4m3 value) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(value.bits, __NV_E4M3)));
}

/// Rounds to nearest, ties to even.
template <class Element>
__device__ __forceinline__ Element from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ F16 from_float<F16>(float value) {
  return __float2half_rn(value);
}

/// Rounds two values to Element (16 bits) and packs them into a register, the first in the low half.
template <class Element>
__device__ __forceinline__ std::uint32_t pack_two(float low, float high) {
  return ptx::convert_pair<Element>(low, high);
}

/// Rounds four values to Element and stores them with one aligned store of 8 or 16 bytes.
template <class Element>
__device__ __forceinline__ void store_four(Element* to, float a, float b, float c, float d) {
  if constexpr (sizeof(Element) == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(a, b, c, d);
  } else {
    const Element four[4] = {from_float<Element>(a), from_float<Element>(b), from_float<Element>(c),
                             from_float<Element>(d)};
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(four);
  }
}

/// Both halves of a - b, of two bf16 each.
__device__ __forceinline__ std::uint32_t subtract_pairs(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 d =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const std::uint32_t&>(d);
}
__device__ __forceinline__ std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 d =
      __hmul2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const std::uint32_t&>(d);
}

/// int8 at bits 0 … 7 and 16 … 23 as a pair of bf16, exactly; other bits do not matter. The low seven bits
/// below 0x4300 are 128 + them; bit 7 there is 128 + 128.
__device__ __forceinline__ std::uint32_t int8_pair(std::uint32_t codes) {
  return subtract_pairs(ptx::mask_and_flip(codes, 0x007f007fu, 0x43004300u),
                        ptx::mask_and_flip(codes, 0x00800080u, 0x43004300u));
}

/// Calls function(Element{}) with the device type of `dtype`.
template <class Function>
void with_element(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::bf16: return std::forward<Function>(function)(Bf16{});
    case DType::f16: return std::forward<Function>(function)(F16{});
    case DType::f32: return std::forward<Function>(function)(float{});
  }
}

}  // namespace troupe::kernels::cuda
