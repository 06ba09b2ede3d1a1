#pragma once
// Hopper's copy engine and the barriers in shared memory that its copies complete on.
//
// A barrier counts arrivals and bytes. One thread announces the bytes (arrive_expect), the copies bring them,
// and wait(parity) returns when arrivals and bytes of the phase are complete; the parity of the first phase
// is 0, and a wait for parity 1 on a fresh barrier returns at once ("the slot is empty").
#include <cuda.h>

#include <cstdint>

namespace troupe::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Sixteen bytes from global to shared memory, asynchronously; zeros when !valid. Any GPU from sm_80 on.
__device__ __forceinline__ void copy_async_16(std::uint32_t to, const void* from, bool valid = true) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using Barrier = std::uint64_t;

__device__ __forceinline__ void barrier_init(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
/// After barrier_init() and before the block (or cluster) barrier that publishes it.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives and adds `bytes` to what the phase waits for.
__device__ __forceinline__ void arrive_expect(Barrier* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool try_wait(Barrier* barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
/// Whether the phase is complete by now; try_wait() may sleep a while to find out.
__device__ __forceinline__ bool test(Barrier* barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void wait(Barrier* barrier, std::uint32_t parity) {
  while (!try_wait(barrier, parity)) {
  }
}
/// Orders this thread's ordinary shared-memory accesses before later ones of the copy engine and tensor
/// cores.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// A box of a tensor to shared memory, coordinates innermost first; completes on `full` with the box's bytes
/// (those out of bounds too: they come as zeros). One thread calls it. `to`: 128-byte aligned, 1024 when
/// swizzled.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, Barrier* full, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(full)), "r"(c0), "r"(c1)
      : "memory");
}
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, Barrier* full, int c0, int c1,
                                         int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(full)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
/// `bytes` (a multiple of 16) of contiguous memory; both ends 16-byte aligned.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, std::uint32_t bytes, Barrier* full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(full))
      : "memory");
}

/// to[0 … 3] += v, in memory and without waiting for it. 16-byte aligned, global memory.
__device__ __forceinline__ void add_to_memory(float* to, float4 v) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// The same shared-memory address in another block of the cluster.
__device__ __forceinline__ std::uint32_t address_at(std::uint32_t address, int block) {
  std::uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
/// From an address of address_at().
__device__ __forceinline__ float4 load_cluster(std::uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
/// All threads of all blocks of the cluster.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#else  // Never launched there; the kernels have to compile.

using Barrier = std::uint64_t;
__device__ __forceinline__ void barrier_init(Barrier*, int) {}
__device__ __forceinline__ void fence_barrier_init() {}
__device__ __forceinline__ void arrive(Barrier*) {}
__device__ __forceinline__ void arrive_expect(Barrier*, std::uint32_t) {}
__device__ __forceinline__ bool try_wait(Barrier*, std::uint32_t) { return true; }
__device__ __forceinline__ bool test(Barrier*, std::uint32_t) { return true; }
__device__ __forceinline__ void wait(Barrier*, std::uint32_t) {}
__device__ __forceinline__ void fence_proxy_async() {}
__device__ __forceinline__ void prefetch_map(const CUtensorMap*) {}
__device__ __forceinline__ void copy_box(void*, const CUtensorMap*, Barrier*, int, int) {}
__device__ __forceinline__ void copy_box(void*, const CUtensorMap*, Barrier*, int, int, int) {}
__device__ __forceinline__ void copy_bulk(void*, const void*, std::uint32_t, Barrier*) {}
__device__ __forceinline__ void add_to_memory(float*, float4) {}
__device__ __forceinline__ unsigned cluster_rank() { return 0; }
__device__ __forceinline__ std::uint32_t address_at(std::uint32_t address, int) { return address; }
__device__ __forceinline__ float4 load_cluster(std::uint32_t) { return {}; }
__device__ __forceinline__ void sync_cluster() {}

#endif

}  // namespace troupe::cuda
