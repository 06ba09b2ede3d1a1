#pragma once
// wgmma (see wgmma.cuh) with 8, 16 or 32 columns: for products whose B is a few rows of activations.
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/wgmma.cuh"

namespace troupe::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define TROUPE_NARROW_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])

/// d = a · b, plus d where `accumulate`, in bf16. N: 8, 16, 32, 64, 128 or 256.
template <int N>
__device__ __forceinline__ void wgmma_of(float (&d)[N / 2], std::uint64_t a, std::uint64_t b,
                                         bool accumulate) {
  if constexpr (N == 8) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0;\n}"
        : TROUPE_NARROW_4(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  } else if constexpr (N == 16) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, "
        "1, "
        "1, 0, 0;\n}"
        : TROUPE_NARROW_4(0), TROUPE_NARROW_4(4)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  } else if constexpr (N == 32) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
        "%11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 0;\n}"
        : TROUPE_NARROW_4(0), TROUPE_NARROW_4(4), TROUPE_NARROW_4(8), TROUPE_NARROW_4(12)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  } else {
    wgmma<__nv_bfloat16, N>(d, a, b, accumulate);
  }
}

#undef TROUPE_NARROW_4

#else

template <int N>
__device__ __forceinline__ void wgmma_of(float (&)[N / 2], std::uint64_t, std::uint64_t, bool) {}

#endif

/// An 8 × 8 matrix of 16-bit elements, two neighbours of row lane / 4 to a lane, transposed.
__device__ __forceinline__ std::uint32_t transposed(std::uint32_t two) {
  std::uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(two));
  return out;
}

}  // namespace troupe::cuda
