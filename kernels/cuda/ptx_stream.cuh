#pragma once
// The instructions of the streaming products: tensor cores by mma.sync, barriers in shared memory, copies
// of rows into shared memory, and shared memory of a cluster. On Hopper one instruction copies a row; before
// it a warp copies it by pieces of 16 bytes. Nothing else tells the GPUs apart.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace troupe::cuda::stream {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ uint4 load_shared(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}

// A barrier completes a phase when `count` arrivals and all expected bytes are there; wait() takes the
// parity of the phase waited for.
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  do {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#endif
  } while (done == 0);
}

/// Makes initialised barriers known to the copy engine; before the block's barrier.
__device__ __forceinline__ void barrier_publish() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// A stage is filled by one warp: fill_begin with the bytes to come, copy_rows as often as needed, fill_end.
// Its barrier is made for kFillArrivals.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr int kFillArrivals = 1;
#else
inline constexpr int kFillArrivals = 32;
#endif

__device__ __forceinline__ void fill_begin(std::uint32_t barrier, int bytes, int lane) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (lane == 0) {
    asm volatile(
        "{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier),
        "r"(bytes)
        : "memory");
  }
  __syncwarp();
#endif
}

/// The same by one thread alone.
__device__ __forceinline__ void fill_begin_one(std::uint32_t barrier, int bytes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier),
               "r"(bytes)
               : "memory");
#endif
}

/// Copies row(0) … row(rows - 1), `bytes` each (a multiple of 16), to shared rows `pitch` bytes apart.
template <class Row>
__device__ __forceinline__ void copy_rows(std::uint32_t barrier, std::uint32_t to, int pitch, int rows,
                                          int bytes, int lane, const Row& row) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  for (int r = lane; r < rows; r += 32) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            to + static_cast<std::uint32_t>(r * pitch)),
        "l"(row(r)), "r"(bytes), "r"(barrier)
        : "memory");
  }
#else
  for (int r = 0; r < rows; ++r) {
    const char* from = row(r);
    for (int at = lane * 16; at < bytes; at += 512) {
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + static_cast<std::uint32_t>(r * pitch + at)),
          "l"(from + at)
          : "memory");
    }
  }
#endif
}

__device__ __forceinline__ void fill_end(std::uint32_t barrier) {
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

__device__ __forceinline__ void copy_sixteen(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// Until this thread's copy_sixteen() are complete.
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Threads first … of a block meet at hardware barrier `id` (1 … 15).
__device__ __forceinline__ void meet(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void cluster_meet() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __syncwarp();
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __syncwarp();
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __syncwarp();
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/// Our own shared address as block `rank` of the cluster has it.
__device__ __forceinline__ std::uint32_t address_at(std::uint32_t at, int rank) {
  std::uint32_t there = at;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
#endif
  return there;
}

/// Stores to another block's shared memory; four of the bytes its barrier expects.
__device__ __forceinline__ void send(std::uint32_t to, float value, std::uint32_t barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(__float_as_uint(value)), "r"(barrier)
               : "memory");
#endif
}

/// Four floats of shared memory of block `rank` of the cluster, at an address of our own.
__device__ __forceinline__ float4 load_cluster(std::uint32_t at, int rank) {
  float4 v;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  std::uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
#else
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
#endif
  return v;
}

/// d += a · b, 16 × 8 from 16 × 16 (row-major) and 16 × 8 (column-major), sums in fp32.
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1);

template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                                   std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                                   std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                            std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                            std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace troupe::cuda::stream
