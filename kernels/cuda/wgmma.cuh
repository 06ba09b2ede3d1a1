#pragma once
// Hopper's asynchronous tensor-core product: a warpgroup (four warps, the first a multiple of four) computes
// D[64 × N] += A[64 × k] · B[k × N] with fp32 sums in its registers, B in shared memory, A in shared memory
// or in registers. k is 16 for elements of 16 bits, 32 for e4m3: 32 bytes of a row. With e4m3 the tensor
// cores keep about 14 bits of a sum, and both operands lie along k. int8 likewise, with int32 sums.
//
// Order of a product: wgmma_fence() · any number of wgmma() · wgmma_commit() · wgmma_wait<pending>(). Between
// the first and the wait the sums (and A in registers) may not be touched. Shared memory written by ordinary
// stores or cp.async needs fence_proxy_async() (ptx.cuh) first; what bulk copies wrote needs none.
//
// Thread t of the warpgroup holds of D: rows 16 (t / 32) + t % 32 / 4 and 8 further down; columns
// 8 j + 2 (t % 4) and the next: d[4j], d[4j + 1] of the upper row, d[4j + 2], d[4j + 3] of the lower.
// A in registers: a[0] upper row, columns 2 (t % 4) and the next (low half first); a[1] lower row; a[2], a[3]
// the same 8 columns on (int8: four columns from 4 (t % 4) on, and the same 16 columns on). So two
// neighbouring groups j of a former D, rounded and packed, are an A.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace troupe::ptx {

/// The descriptor of an operand in shared memory with the 128-byte swizzle: rows of 128 bytes (64 elements);
/// groups of eight rows, 1024 bytes, 1024-byte aligned; the 16-byte chunk c of row r is stored at c ^ (r %
/// 8). Operand with k along the row ("K-major"; x[row][k], weight[output][k]): `stride` = bytes from eight
/// rows to the next eight (1024 when dense), `leading` is ignored. A step of 16 along k adds 32 bytes to the
/// address. Operand with k down the rows (B only, kTransposed: V[token][dimension]): `stride` = bytes from
/// eight k to the next eight, `leading` = bytes from 64 columns to the next 64. A step of 16 along k adds two
/// strides.
__device__ __forceinline__ std::uint64_t swizzled_operand(std::uint32_t shared_address,
                                                          std::uint32_t stride = 1024,
                                                          std::uint32_t leading = 16) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{stride >> 4} << 32) | (std::uint64_t{leading >> 4} << 16) |
         ((shared_address & 0x3ffffu) >> 4);
}

/// The descriptor of an operand with the 32-byte swizzle: rows of 32 bytes (16 elements), groups of eight
/// rows, 256 bytes, 256-byte aligned; the 16-byte chunk c of row r is stored at c ^ (r / 4 % 2). Operand with
/// k along the row: a row is one step of 16 along k; `stride` as above (256 when dense), `leading` is
/// ignored. Operand with k down the rows (B only, kTransposed): `stride` likewise, `leading` = bytes from 16
/// columns to the next 16. A step of 16 along k adds two strides.
__device__ __forceinline__ std::uint64_t narrow_operand(std::uint32_t shared_address,
                                                        std::uint32_t stride = 256,
                                                        std::uint32_t leading = 16) {
  return (std::uint64_t{3} << 62) | (std::uint64_t{stride >> 4} << 32) | (std::uint64_t{leading >> 4} << 16) |
         ((shared_address & 0x3ffffu) >> 4);
}

/// The descriptor of the operand `bytes` after this one.
__device__ __forceinline__ std::uint64_t advanced(std::uint64_t operand, std::uint32_t bytes) {
  return operand + (bytes >> 4);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `kPending` committed products are unfinished. The compiler does not merge waits with
/// different kPlace into one at another place.
template <int kPending, int kPlace = 0>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0; // %1" ::"n"(kPending), "n"(kPlace) : "memory");
}

/// Raises (lowers) the number of registers per thread of this warpgroup. All its warps call it.
template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#define TROUPE_SUMS_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"

#define TROUPE_SUMS_32                                                      \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

#define TROUPE_SUMS_40                                                               \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39}"

#define TROUPE_SUMS_48                                                               \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}"

#define TROUPE_SUMS_64                                                               \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

#define TROUPE_SUMS_80                                                               \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}"

#define TROUPE_SUMS_96                                                               \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}"

#define TROUPE_SUMS_128                                                                          \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"

#define TROUPE_OUT_8(i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define TROUPE_OUT_32(i) TROUPE_OUT_8(i), TROUPE_OUT_8(i + 8), TROUPE_OUT_8(i + 16), TROUPE_OUT_8(i + 24)
#define TROUPE_OUTS_16 TROUPE_OUT_8(0), TROUPE_OUT_8(8)
#define TROUPE_OUTS_32 TROUPE_OUT_32(0)
#define TROUPE_OUTS_40 TROUPE_OUT_32(0), TROUPE_OUT_8(32)
#define TROUPE_OUTS_48 TROUPE_OUTS_40, TROUPE_OUT_8(40)
#define TROUPE_OUTS_64 TROUPE_OUT_32(0), TROUPE_OUT_32(32)
#define TROUPE_OUTS_80 TROUPE_OUT_32(0), TROUPE_OUT_32(32), TROUPE_OUT_8(64), TROUPE_OUT_8(72)
#define TROUPE_OUTS_96 TROUPE_OUT_32(0), TROUPE_OUT_32(32), TROUPE_OUT_32(64)
#define TROUPE_OUTS_128 TROUPE_OUT_32(0), TROUPE_OUT_32(32), TROUPE_OUT_32(64), TROUPE_OUT_32(96)
// sums: count of D's registers of a thread; then the numbers of the operands that follow them.
#define TROUPE_WGMMA(n, type, sums, a, b, more, tb)                                                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #more ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n       \
               "k16.f32." type "." type " " TROUPE_SUMS_##sums ", %" #a ", %" #b ", p, 1, 1, 0, " #tb ";\n}" \
               : TROUPE_OUTS_##sums                                                                          \
               : "l"(a_operand), "l"(b_operand), "r"(static_cast<int>(accumulate)))
#define TROUPE_WGMMA_FP8(n, sums, a, b, more)                                                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #more ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n \
               "k32.f32.e4m3.e4m3 " TROUPE_SUMS_##sums ", %" #a ", %" #b ", p, 1, 1;\n}"               \
               : TROUPE_OUTS_##sums                                                                    \
               : "l"(a_operand), "l"(b_operand), "r"(static_cast<int>(accumulate)))
#define TROUPE_WGMMA_A(n, type, sums, a0, a1, a2, a3, b, more, tb)                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #more ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n  \
               "k16.f32." type "." type " " TROUPE_SUMS_##sums ", {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 \
                                                               "}, %" #b ", p, 1, 1, " #tb ";\n}"       \
               : TROUPE_OUTS_##sums                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_operand),                            \
                 "r"(static_cast<int>(accumulate)))

/// d = a · b, plus d where `accumulate`. T: __nv_bfloat16 or __half, N: 64, 128, 160, 192 or 256; or
/// __nv_bfloat16, not transposed, N: 80 or 96; or __nv_fp8_e4m3, N: 64 or 128.
template <class T, int N, bool kTransposed = false>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], std::uint64_t a_operand, std::uint64_t b_operand,
                                      bool accumulate) {
  static_assert(N == 64 || N == 80 || N == 96 || N == 128 || N == 160 || N == 192 || N == 256);
  if constexpr (N == 80 || N == 96) {
    static_assert(std::is_same_v<T, __nv_bfloat16> && !kTransposed);
    if constexpr (N == 80)
      TROUPE_WGMMA(80, "bf16", 40, 40, 41, 42, 0);
    else
      TROUPE_WGMMA(96, "bf16", 48, 48, 49, 50, 0);
  } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
    static_assert((N == 64 || N == 128) && !kTransposed);
    if constexpr (N == 64)
      TROUPE_WGMMA_FP8(64, 32, 32, 33, 34);
    else
      TROUPE_WGMMA_FP8(128, 64, 64, 65, 66);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (N == 64 && !kTransposed)
      TROUPE_WGMMA(64, "bf16", 32, 32, 33, 34, 0);
    else if constexpr (N == 64 && kTransposed)
      TROUPE_WGMMA(64, "bf16", 32, 32, 33, 34, 1);
    else if constexpr (N == 128 && !kTransposed)
      TROUPE_WGMMA(128, "bf16", 64, 64, 65, 66, 0);
    else if constexpr (N == 128 && kTransposed)
      TROUPE_WGMMA(128, "bf16", 64, 64, 65, 66, 1);
    else if constexpr (N == 160 && !kTransposed)
      TROUPE_WGMMA(160, "bf16", 80, 80, 81, 82, 0);
    else if constexpr (N == 160 && kTransposed)
      TROUPE_WGMMA(160, "bf16", 80, 80, 81, 82, 1);
    else if constexpr (N == 192 && !kTransposed)
      TROUPE_WGMMA(192, "bf16", 96, 96, 97, 98, 0);
    else if constexpr (N == 192 && kTransposed)
      TROUPE_WGMMA(192, "bf16", 96, 96, 97, 98, 1);
    else if constexpr (N == 256 && !kTransposed)
      TROUPE_WGMMA(256, "bf16", 128, 128, 129, 130, 0);
    else if constexpr (N == 256 && kTransposed)
      TROUPE_WGMMA(256, "bf16", 128, 128, 129, 130, 1);
  } else {
    static_assert(std::is_same_v<T, __half>);
    if constexpr (N == 64 && !kTransposed)
      TROUPE_WGMMA(64, "f16", 32, 32, 33, 34, 0);
    else if constexpr (N == 64 && kTransposed)
      TROUPE_WGMMA(64, "f16", 32, 32, 33, 34, 1);
    else if constexpr (N == 128 && !kTransposed)
      TROUPE_WGMMA(128, "f16", 64, 64, 65, 66, 0);
    else if constexpr (N == 128 && kTransposed)
      TROUPE_WGMMA(128, "f16", 64, 64, 65, 66, 1);
    else if constexpr (N == 160 && !kTransposed)
      TROUPE_WGMMA(160, "f16", 80, 80, 81, 82, 0);
    else if constexpr (N == 160 && kTransposed)
      TROUPE_WGMMA(160, "f16", 80, 80, 81, 82, 1);
    else if constexpr (N == 192 && !kTransposed)
      TROUPE_WGMMA(192, "f16", 96, 96, 97, 98, 0);
    else if constexpr (N == 192 && kTransposed)
      TROUPE_WGMMA(192, "f16", 96, 96, 97, 98, 1);
    else if constexpr (N == 256 && !kTransposed)
      TROUPE_WGMMA(256, "f16", 128, 128, 129, 130, 0);
    else if constexpr (N == 256 && kTransposed)
      TROUPE_WGMMA(256, "f16", 128, 128, 129, 130, 1);
  }
}

/// The same with A in registers; N may be 32 too (__nv_bfloat16, not transposed), and 80 (transposed).
template <class T, int N, bool kTransposed = false>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b_operand,
                                      bool accumulate) {
  static_assert(N == 32 || N == 64 || N == 80 || N == 128 || N == 160 || N == 192 || N == 256);
  static_assert(N != 80 || kTransposed);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    static_assert(N != 32 || !kTransposed);
    if constexpr (N == 32)
      TROUPE_WGMMA_A(32, "bf16", 16, 16, 17, 18, 19, 20, 21, 0);
    else if constexpr (N == 80)
      TROUPE_WGMMA_A(80, "bf16", 40, 40, 41, 42, 43, 44, 45, 1);
    else if constexpr (N == 64 && !kTransposed)
      TROUPE_WGMMA_A(64, "bf16", 32, 32, 33, 34, 35, 36, 37, 0);
    else if constexpr (N == 64 && kTransposed)
      TROUPE_WGMMA_A(64, "bf16", 32, 32, 33, 34, 35, 36, 37, 1);
    else if constexpr (N == 128 && !kTransposed)
      TROUPE_WGMMA_A(128, "bf16", 64, 64, 65, 66, 67, 68, 69, 0);
    else if constexpr (N == 128 && kTransposed)
      TROUPE_WGMMA_A(128, "bf16", 64, 64, 65, 66, 67, 68, 69, 1);
    else if constexpr (N == 160 && !kTransposed)
      TROUPE_WGMMA_A(160, "bf16", 80, 80, 81, 82, 83, 84, 85, 0);
    else if constexpr (N == 160 && kTransposed)
      TROUPE_WGMMA_A(160, "bf16", 80, 80, 81, 82, 83, 84, 85, 1);
    else if constexpr (N == 192 && !kTransposed)
      TROUPE_WGMMA_A(192, "bf16", 96, 96, 97, 98, 99, 100, 101, 0);
    else if constexpr (N == 192 && kTransposed)
      TROUPE_WGMMA_A(192, "bf16", 96, 96, 97, 98, 99, 100, 101, 1);
    else if constexpr (N == 256 && !kTransposed)
      TROUPE_WGMMA_A(256, "bf16", 128, 128, 129, 130, 131, 132, 133, 0);
    else if constexpr (N == 256 && kTransposed)
      TROUPE_WGMMA_A(256, "bf16", 128, 128, 129, 130, 131, 132, 133, 1);
  } else {
    static_assert(std::is_same_v<T, __half>);
    if constexpr (N == 80)
      TROUPE_WGMMA_A(80, "f16", 40, 40, 41, 42, 43, 44, 45, 1);
    else if constexpr (N == 64 && !kTransposed)
      TROUPE_WGMMA_A(64, "f16", 32, 32, 33, 34, 35, 36, 37, 0);
    else if constexpr (N == 64 && kTransposed)
      TROUPE_WGMMA_A(64, "f16", 32, 32, 33, 34, 35, 36, 37, 1);
    else if constexpr (N == 128 && !kTransposed)
      TROUPE_WGMMA_A(128, "f16", 64, 64, 65, 66, 67, 68, 69, 0);
    else if constexpr (N == 128 && kTransposed)
      TROUPE_WGMMA_A(128, "f16", 64, 64, 65, 66, 67, 68, 69, 1);
    else if constexpr (N == 160 && !kTransposed)
      TROUPE_WGMMA_A(160, "f16", 80, 80, 81, 82, 83, 84, 85, 0);
    else if constexpr (N == 160 && kTransposed)
      TROUPE_WGMMA_A(160, "f16", 80, 80, 81, 82, 83, 84, 85, 1);
    else if constexpr (N == 192 && !kTransposed)
      TROUPE_WGMMA_A(192, "f16", 96, 96, 97, 98, 99, 100, 101, 0);
    else if constexpr (N == 192 && kTransposed)
      TROUPE_WGMMA_A(192, "f16", 96, 96, 97, 98, 99, 100, 101, 1);
    else if constexpr (N == 256 && !kTransposed)
      TROUPE_WGMMA_A(256, "f16", 128, 128, 129, 130, 131, 132, 133, 0);
    else if constexpr (N == 256 && kTransposed)
      TROUPE_WGMMA_A(256, "f16", 128, 128, 129, 130, 131, 132, 133, 1);
  }
}

#define TROUPE_INT_8(i)                                                                       \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), \
      "+r"(d[i + 6]), "+r"(d[i + 7])
#define TROUPE_INTS_16 TROUPE_INT_8(0), TROUPE_INT_8(8)
#define TROUPE_INTS_32 TROUPE_INTS_16, TROUPE_INT_8(16), TROUPE_INT_8(24)
#define TROUPE_INTS_64 TROUPE_INTS_32, TROUPE_INT_8(32), TROUPE_INT_8(40), TROUPE_INT_8(48), TROUPE_INT_8(56)
#define TROUPE_WGMMA_INT8_A(n, sums, a0, a1, a2, a3, b, more)                                          \
  asm volatile(                                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %" #more ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n          \
      "k32.s32.s8.s8 " TROUPE_SUMS_##sums ", {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p;\n}" \
      : TROUPE_INTS_##sums                                                                             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_operand), "r"(static_cast<int>(accumulate)))

/// The same of int8, with A in registers. N: 32, 64 or 128.
template <int N>
__device__ __forceinline__ void wgmma(int (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b_operand,
                                      bool accumulate) {
  static_assert(N == 32 || N == 64 || N == 128);
  if constexpr (N == 32)
    TROUPE_WGMMA_INT8_A(32, 16, 16, 17, 18, 19, 20, 21);
  else if constexpr (N == 64)
    TROUPE_WGMMA_INT8_A(64, 32, 32, 33, 34, 35, 36, 37);
  else
    TROUPE_WGMMA_INT8_A(128, 64, 64, 65, 66, 67, 68, 69);
}

#undef TROUPE_WGMMA_INT8_A
#undef TROUPE_INTS_64
#undef TROUPE_INTS_32
#undef TROUPE_INTS_16
#undef TROUPE_INT_8
#undef TROUPE_WGMMA_A
#undef TROUPE_WGMMA_FP8
#undef TROUPE_WGMMA
#undef TROUPE_OUTS_128
#undef TROUPE_OUTS_96
#undef TROUPE_OUTS_80
#undef TROUPE_OUTS_64
#undef TROUPE_OUTS_48
#undef TROUPE_OUTS_40
#undef TROUPE_OUTS_32
#undef TROUPE_OUTS_16
#undef TROUPE_OUT_32
#undef TROUPE_OUT_8
#undef TROUPE_SUMS_128
#undef TROUPE_SUMS_96
#undef TROUPE_SUMS_80
#undef TROUPE_SUMS_64
#undef TROUPE_SUMS_48
#undef TROUPE_SUMS_40
#undef TROUPE_SUMS_32
#undef TROUPE_SUMS_16

#else  // Never launched there; the kernels have to compile.

__device__ __forceinline__ void wgmma_fence() {}
__device__ __forceinline__ void wgmma_commit() {}
template <int kPending, int kPlace = 0>
__device__ __forceinline__ void wgmma_wait() {}
template <int kRegisters>
__device__ __forceinline__ void raise_registers() {}
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {}
template <class T, int N, bool kTransposed = false>
__device__ __forceinline__ void wgmma(float (&)[N / 2], std::uint64_t, std::uint64_t, bool) {}
template <class T, int N, bool kTransposed = false>
__device__ __forceinline__ void wgmma(float (&)[N / 2], const std::uint32_t (&)[4], std::uint64_t, bool) {}
template <int N>
__device__ __forceinline__ void wgmma(int (&)[N / 2], const std::uint32_t (&)[4], std::uint64_t, bool) {}

#endif

}  // namespace troupe::ptx
