#pragma once
// Copies boxes of a matrix into shared memory for the streaming products. On Hopper the copy engine brings a
// box with one instruction; on other GPUs a warp does, in pieces of 16 bytes.
//
// A box is rows of 64 elements of 16 bits, 128 bytes each, whose 16-byte chunk c lies at c ^ (row % 8): the
// copy engine's 128-byte swizzle.
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::streaming {

/// A box in global memory, described for both ways of copying it.
struct BoxSource {
  const CUtensorMap* map;  // Hopper: the tensor, and the box's coordinates
  int column, row, group;
  const char* first;  // other GPUs: the box's first element
  std::size_t row_bytes;
  int rows, columns;  // that exist; columns past them are zero in both ways
};

// The arrivals that the boxes of one phase make on their barrier.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr int kBoxArrivals = 1;
#else
inline constexpr int kBoxArrivals = 32;
#endif

/// Before a phase's boxes, by a whole warp: the barrier expects their bytes.
__device__ __forceinline__ void begin_boxes(ptx::SharedAddress barrier, int bytes, int lane) {
  if (lane == 0) ptx::mbarrier_arrive_expect(barrier, bytes);
  __syncwarp();
}

/// By a whole warp.
__device__ __forceinline__ void copy_box(ptx::SharedAddress to, ptx::SharedAddress barrier,
                                         const BoxSource& from, int lane) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (lane == 0) ptx::bulk_copy_box(to, from.map, barrier, from.column, from.row, from.group);
#else
  // Every fourth row: row % 8 is lane / 8 or 4 more. One warp fills the whole ring, so the loop is short.
  const int chunk = lane % 8, first_row = lane / 8;
  const bool there = chunk * 8 < from.columns;
  const char* at = from.first + static_cast<std::size_t>(first_row) * from.row_bytes + chunk * 16;
  ptx::SharedAddress even = to + static_cast<ptx::SharedAddress>(first_row * 128 + (chunk ^ first_row) * 16),
                     odd = (even ^ 64) + 512;
#pragma unroll 4
  for (int row = first_row; row < from.rows; row += 8) {
    ptx::copy_async_16_or_zero(even, at, there);
    at += 4 * from.row_bytes;
    if (row + 4 < from.rows) ptx::copy_async_16_or_zero(odd, at, there);
    at += 4 * from.row_bytes;
    even += 1024;
    odd += 1024;
  }
#endif
}

/// Copies `bytes` neighbouring bytes, a multiple of 16 and at most 512, in a phase of boxes. By a whole warp.
__device__ __forceinline__ void copy_line(ptx::SharedAddress to, const char* from, int bytes,
                                          ptx::SharedAddress barrier, int lane) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::bulk_copy_if(to, from, static_cast<std::uint32_t>(bytes), barrier, lane == 0);
#else
  if (lane * 16 < bytes)
    ptx::copy_async_16(to + static_cast<ptx::SharedAddress>(lane * 16), from + lane * 16);
#endif
}

/// Waits for a phase of boxes. Where a wait cannot sleep by itself, many warps that look all the time would
/// take the way to shared memory from the copies.
__device__ __forceinline__ void wait_for_boxes(ptx::SharedAddress barrier, std::uint32_t parity) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::mbarrier_wait(barrier, parity);
#else
  while (!ptx::mbarrier_test_wait(barrier, parity)) __nanosleep(64);
#endif
}

/// After a phase's boxes, by a whole warp.
__device__ __forceinline__ void end_boxes(ptx::SharedAddress barrier) {
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::mbarrier_arrive_after_copies(barrier);
#endif
}

}  // namespace troupe::kernels::cuda::streaming
