#pragma once
// PTX instructions that CUDA C++ does not offer: one wrapper each. All inline assembly of the kernels is
// here, in mma.cuh (a warp's tensor core products), in wgmma.cuh (Hopper's) and in launch.cuh (the overlap of
// kernels).
//
// What only Hopper has does nothing in code for other GPUs: kernels that use it are never launched there, but
// they have to compile. Names and memory order are PTX's; a wrapper adds no synchronisation of its own.
//
// Wrappers are volatile and clobber memory if the instruction accesses memory or must stay in order with
// others that do. Those that only compute are neither.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace troupe::ptx {

/// Shared memory's own 32-bit addresses.
using SharedAddress = std::uint32_t;

__device__ __forceinline__ SharedAddress shared_address(const void* pointer) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ SharedAddress shared_address(SharedAddress address) { return address; }

/// An operand in shared memory, given as an address or as a pointer.
template <class T>
concept SharedOperand = std::is_same_v<T, SharedAddress> || std::is_pointer_v<T>;

// ---- Loads, stores and arithmetic
/// (value & mask) ^ flips in one instruction. The compiler would take two if both are constants.
__device__ __forceinline__ std::uint32_t mask_and_flip(std::uint32_t value, std::uint32_t mask,
                                                       std::uint32_t flips) {
  std::uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(value), "r"(mask), "r"(flips));
  return r;
}
__device__ __forceinline__ uint4 load_shared_16(SharedOperand auto from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared_address(from))
               : "memory");
  return v;
}
__device__ __forceinline__ float4 load_shared_float4(SharedOperand auto from) {
  const uint4 v = load_shared_16(from);
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
__device__ __forceinline__ float load_shared_float(SharedOperand auto from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(shared_address(from)) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared(SharedOperand auto to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared_address(to)), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared_16(SharedOperand auto to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(to)), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

/// Loads 4, 8 or 16 bytes of global memory without leaving a line in the L1 cache.
template <class T>
__device__ __forceinline__ T load_no_allocate(const void* from) {
  T value;
  if constexpr (std::is_same_v<T, ulonglong2>) {
    asm volatile("ld.global.L1::no_allocate.v2.b64 {%0, %1}, [%2];"
                 : "=l"(value.x), "=l"(value.y)
                 : "l"(from));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.global.L1::no_allocate.b64 %0, [%1];" : "=l"(value) : "l"(from));
  } else {
    static_assert(sizeof(T) == 4);
    asm volatile("ld.global.L1::no_allocate.b32 %0, [%1];" : "=r"(value) : "l"(from));
  }
  return value;
}

/// Stores the value after all earlier writes of this thread, as seen by the whole system including the host.
__device__ __forceinline__ void store_release_system(std::uint64_t* to, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ void store_release_system(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
/// What was stored before the value that is found, by any processor, is visible afterwards.
__device__ __forceinline__ std::uint32_t load_acquire_system(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

/// 16 bytes that another GPU writes or reads: neither cached nor left out. Each half of 8 bytes is whole.
__device__ __forceinline__ uint4 load_volatile_16(const uint4* from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_volatile_16(uint4* to, uint4 v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

/// Adds one to a counter in global memory and returns its old value. Orders this thread's earlier writes
/// before its later reads, among all blocks of the GPU.
__device__ __forceinline__ std::uint32_t atomic_increment_acq_rel(std::uint32_t* counter) {
  std::uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

/// to[0 … 3] += v in global memory; returns before it is done. `to` is 16-byte aligned. Hopper.
__device__ __forceinline__ void reduce_add(float* to, float4 v) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
#endif
}

/// Two values rounded to bf16 (f16) in one register, the first in the low half.
template <class Element>
__device__ __forceinline__ std::uint32_t convert_pair(float low, float high) {
  std::uint32_t r;
  if constexpr (std::is_same_v<Element, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  }
  return r;
}

/// 2^x with an error of two units in the last place; denormals become zero.
__device__ __forceinline__ float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
/// The same, volatile: it stays on its side of waits for asynchronous products.
__device__ __forceinline__ float exp2_approx_in_order(float x) {
  float r;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/// Cycles of this multiprocessor's clock; wraps around.
__device__ __forceinline__ unsigned clock_cycles() {
  unsigned now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
  return now;
}
/// Nanoseconds of a clock that all of the GPU shares.
__device__ __forceinline__ std::uint64_t global_timer_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// No instruction: the compiler must have the value in a register here. It cannot compute the value later,
// where it is used (materialize), or move a use to before this point (changed_asynchronously).
__device__ __forceinline__ void materialize(std::uint32_t& value) { asm volatile("" : "+r"(value)); }
/// A pointer to global memory.
template <class T>
__device__ __forceinline__ void materialize(T*& pointer) {
  asm volatile("" : "+l"(pointer));
  __builtin_assume(__isGlobal(pointer));
}
/// An asynchronous instruction has written these registers.
template <int kCount>
__device__ __forceinline__ void changed_asynchronously(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// ---- Named barriers of a block: 0 is __syncthreads()'s; 1 … 15 are free. `threads`, a multiple of 32,
// counts those that only arrive too.

__device__ __forceinline__ void barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/// With constants as immediate operands.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void barrier_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- cp.async: global to shared memory by each thread for itself
__device__ __forceinline__ void copy_async_4(SharedOperand auto to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_16(SharedOperand auto to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
/// Zeros if !valid; `from` is then not read.
__device__ __forceinline__ void copy_async_16_or_zero(SharedOperand auto to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kPending of this thread's committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Waits for all of this thread's copies, committed or not.
__device__ __forceinline__ void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- Barriers in shared memory
//
// A phase of a barrier is complete when its arrivals and all expected bytes are there. A wait names the phase
// by its parity: the first phase has parity 0. On a fresh barrier a wait for parity 1 returns at once, which
// reads as "the slot is empty".

using Barrier = std::uint64_t;

__device__ __forceinline__ void mbarrier_init(SharedOperand auto barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
/// Makes initialised barriers known to the copy engine and to the cluster's other blocks. Between
/// mbarrier_init() and the barrier of the block or cluster that comes before their use.
__device__ __forceinline__ void fence_mbarrier_init() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void mbarrier_arrive(SharedOperand auto barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#else
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(shared_address(barrier))
      : "memory");
#endif
}
/// Arrives and adds `bytes` to what the phase waits for.
__device__ __forceinline__ void mbarrier_arrive_expect(SharedOperand auto barrier, std::uint32_t bytes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
#endif
}
/// The same as a predicated instruction: a whole warp calls it, so that its operands stay in uniform
/// registers.
__device__ __forceinline__ void mbarrier_arrive_expect_if(SharedOperand auto barrier, std::uint32_t bytes,
                                                          bool condition) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 state;\nsetp.ne.s32 p, %2, 0;\n"
      "@p mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(shared_address(barrier)),
      "r"(bytes), "r"(static_cast<int>(condition))
      : "memory");
#endif
}
/// Arrives when this thread's cp.async so far are complete; counts as one of mbarrier_init()'s arrivals.
__device__ __forceinline__ void mbarrier_arrive_after_copies(SharedOperand auto barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// True if the phase is complete now.
__device__ __forceinline__ bool mbarrier_test_wait(SharedOperand auto barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
/// True if the phase is complete; may sleep a while first. Before Hopper it does not sleep.
__device__ __forceinline__ bool mbarrier_try_wait(SharedOperand auto barrier, std::uint32_t parity) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
#else
  return mbarrier_test_wait(barrier, parity);
#endif
}
__device__ __forceinline__ void mbarrier_wait(SharedOperand auto barrier, std::uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

/// Orders this thread's ordinary accesses to shared memory before later ones of the copy engine and the
/// tensor cores. Hopper.
__device__ __forceinline__ void fence_proxy_async() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- The copy engine: global to shared memory. Completes on a barrier that expects the bytes. One thread.
// Hopper.

/// `bytes` (a multiple of 16) of contiguous memory; both ends 16-byte aligned.
__device__ __forceinline__ void bulk_copy(SharedOperand auto to, const void* from, std::uint32_t bytes,
                                          SharedOperand auto barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#endif
}
/// The same as a predicated instruction: a whole warp calls it, so that its operands stay in uniform
/// registers.
__device__ __forceinline__ void bulk_copy_if(SharedOperand auto to, const void* from, std::uint32_t bytes,
                                             SharedOperand auto barrier, bool condition) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %4, 0;\n"
      "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n}" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "r"(static_cast<int>(condition))
      : "memory");
#endif
}
/// A box of a tensor, coordinates innermost first. Elements out of bounds are zeros and count as bytes.
/// `to` is 128-byte aligned, 1024-byte if swizzled.
__device__ __forceinline__ void bulk_copy_box(SharedOperand auto to, const CUtensorMap* map,
                                              SharedOperand auto barrier, int c0, int c1, int c2) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
#endif
}
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

// ---- Clusters: blocks that run at the same time and reach each other's shared memory. Hopper.

/// This block's number in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank = 0;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
/// The address of this block's variable `own` in block `rank`'s shared memory.
__device__ __forceinline__ SharedAddress peer_address(SharedOperand auto own, unsigned rank) {
  SharedAddress there = shared_address(own);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
#endif
  return there;
}

/// Loads from and stores to an address of peer_address().
__device__ __forceinline__ float4 load_peer_float4(SharedAddress from) {
  float4 v{};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
#endif
  return v;
}
__device__ __forceinline__ unsigned long long load_peer_u64(SharedAddress from) {
  unsigned long long v = 0;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(v) : "r"(from));
#endif
  return v;
}
__device__ __forceinline__ ulonglong2 load_peer_u64x2(SharedAddress from) {
  ulonglong2 v{};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("ld.shared::cluster.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "r"(from));
#endif
  return v;
}
__device__ __forceinline__ void store_peer(SharedAddress to, float value) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
#endif
}

// Stores to another block's shared memory that complete on a barrier of that block, which expects the bytes.
// Both addresses are of peer_address().
__device__ __forceinline__ void store_async(SharedAddress to, float value, SharedAddress barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(__float_as_uint(value)), "r"(barrier)
               : "memory");
#endif
}
__device__ __forceinline__ void store_async(SharedAddress to, float2 values, SharedAddress barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(values.x), "f"(values.y), "r"(barrier)
               : "memory");
#endif
}
__device__ __forceinline__ void store_async(SharedAddress to, float4 values, SharedAddress barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w), "r"(barrier)
      : "memory");
#endif
}
__device__ __forceinline__ void store_async(SharedAddress to, unsigned long long value,
                                            SharedAddress barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to),
               "l"(value), "r"(barrier)
               : "memory");
#endif
}
__device__ __forceinline__ void store_async(SharedAddress to, ulonglong2 values, SharedAddress barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::"r"(to),
               "l"(values.x), "l"(values.y), "r"(barrier)
               : "memory");
#endif
}

__device__ __forceinline__ void store_async(SharedAddress to, const float (&values)[2],
                                            SharedAddress barrier) {
  store_async(to, make_float2(values[0], values[1]), barrier);
}
__device__ __forceinline__ void store_async(SharedAddress to, const float (&values)[4],
                                            SharedAddress barrier) {
  store_async(to, make_float4(values[0], values[1], values[2], values[3]), barrier);
}

// The cluster's barrier: all threads of all blocks arrive; each may then wait. A warp's threads must be
// converged.
/// What this thread wrote before is visible to the other threads after their cluster_wait().
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
/// Orders no memory, except what fence_mbarrier_init() published. A release would flush all earlier writes.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
/// Waits until all threads of the cluster have arrived.
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
// The same for warps whose threads may have diverged: they converge first.
__device__ __forceinline__ void warp_cluster_arrive_relaxed() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __syncwarp();
  cluster_arrive_relaxed();
#endif
}
__device__ __forceinline__ void warp_cluster_wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __syncwarp();
  cluster_wait();
#endif
}

}  // namespace troupe::ptx
