#pragma once
// A warp's matrices: tensor core products and the loads that bring their operands.
//
// mma: D[16 × 8] += A[16 × k] · B[k × 8] with fp32 sums; k is 16 for elements of 16 bits, 32 for e4m3. Lane
// l, g = l / 4, t = l % 4, holds (two or four elements a register, the first in the low bits)
//   A   a0 row g, columns 2t, 2t + 1; a1 row g + 8; a2, a3 the same rows, 8 columns on
//   B   b0 rows 2t, 2t + 1 of column g; b1 8 rows on
//   D   d[0], d[1] row g, columns 2t, 2t + 1; d[2], d[3] row g + 8
// With e4m3 a register has columns (rows of B) 4t … 4t + 3, and a2, a3, b1 are 16 further on.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/ptx.cuh"

namespace troupe::ptx {

/// Four 8 × 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8 and gets in
/// r[i] of matrix i row l / 4, columns 2 (l % 4) and the next.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], SharedAddress from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
/// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&r)[4], SharedAddress from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
/// Transposes an 8 × 8 matrix that the warp's registers hold.
__device__ __forceinline__ std::uint32_t movmatrix_transposed(std::uint32_t matrix) {
  std::uint32_t r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(matrix));
  return r;
}

/// Element: __nv_bfloat16, __half or __nv_fp8_e4m3. e4m3 needs Ada or Hopper.
template <class Element>
__device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<Element, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else if constexpr (std::is_same_v<Element, __nv_fp8_e4m3>) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    // Never launched on others, where the kernels have to compile.
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
  } else {
    static_assert(std::is_same_v<Element, __nv_bfloat16>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

}  // namespace troupe::ptx
