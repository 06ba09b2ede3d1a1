#pragma once
// The instructions of the streaming products: tensor cores by mma.sync, barriers in shared memory, boxes of
// weights into shared memory, and shared memory of a cluster. On Hopper the copy engine brings a box by one
// instruction; before it a warp does, by pieces of 16 bytes. Nothing else tells the GPUs apart. Shared memory
// is named by its 32-bit address.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace troupe::cuda::stream {

using Address = std::uint32_t;

__device__ __forceinline__ Address address_of(const void* p) {
  return static_cast<Address>(__cvta_generic_to_shared(p));
}

/// Sixteen bytes from global to shared memory, asynchronously.
__device__ __forceinline__ void copy_sixteen(Address to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// Until this thread's copy_sixteen() are complete.
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ uint4 load_sixteen(Address from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ float4 load_four_floats(Address from) {
  const uint4 v = load_sixteen(from);
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
__device__ __forceinline__ void store_float(Address to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

// A barrier completes a phase when its `count` of arrivals and all expected bytes are there; wait() takes the
// parity of the phase waited for, 0 first.
__device__ __forceinline__ void barrier_init(Address barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(Address barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

/// One arrival, when this thread's copy_sixteen() so far are complete.
__device__ __forceinline__ void barrier_arrive_after_copies(Address barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Arrives and adds to the bytes that the phase waits for.
__device__ __forceinline__ void barrier_expect(Address barrier, int bytes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier),
               "r"(bytes)
               : "memory");
#endif
}

__device__ __forceinline__ void barrier_wait(Address barrier, std::uint32_t parity) {
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

/// Makes initialised barriers known to the copy engine and to other blocks; before the block's barrier.
__device__ __forceinline__ void barrier_publish() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/// Where a box lies in global memory, for either way of bringing it.
struct BoxSource {
  const CUtensorMap* map;  // Hopper: the tensor and the box's place
  int column, row, group;
  const char* first;  // before: its first element, and what there is of it
  std::size_t row_bytes;
  int rows, columns;
};

// A box is rows of 64 elements of 16 bits, 128 bytes each, whose 16-byte chunk c lies at c ^ (row % 8). The
// arrivals that a warp's boxes of one phase make on their barrier:
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr int kBoxArrivals = 1;
#else
inline constexpr int kBoxArrivals = 32;
#endif

/// By a whole warp: before its boxes, how many bytes they have.
__device__ __forceinline__ void boxes_begin(Address barrier, int bytes, int lane) {
  if (lane == 0) barrier_expect(barrier, bytes);
  __syncwarp();
}

__device__ __forceinline__ void copy_box(Address to, Address barrier, const BoxSource& from, int lane) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (lane == 0) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
        "%5}], "
        "[%2];" ::"r"(to),
        "l"(from.map), "r"(barrier), "r"(from.column), "r"(from.row), "r"(from.group)
        : "memory");
  }
#else
  const int chunk = lane % 8;
  if (chunk * 8 >= from.columns) return;
  for (int row = lane / 8; row < from.rows; row += 4) {
    copy_sixteen(to + static_cast<Address>(row * 128 + ((chunk ^ (row % 8)) * 16)),
                 from.first + static_cast<std::size_t>(row) * from.row_bytes + chunk * 16);
  }
#endif
}

__device__ __forceinline__ void boxes_end(Address barrier) {
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
  barrier_arrive_after_copies(barrier);
#endif
}

// Hopper, by a whole warp, for the lane of whom `mine` is true.
/// Arrives at the barrier and adds to the bytes that its phase waits for.
__device__ __forceinline__ void expect_bytes(Address barrier, int bytes, bool mine) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 state;\nsetp.ne.s32 p, %2, 0;\n"
      "@p mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier),
      "r"(bytes), "r"(static_cast<int>(mine))
      : "memory");
#endif
}
/// So many bytes (a multiple of 16) of global memory, which the barrier expects.
__device__ __forceinline__ void copy_bytes(Address to, const char* from, int bytes, Address barrier,
                                           bool mine) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %4, 0;\n"
      "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n}" ::"r"(
          to),
      "l"(from), "r"(bytes), "r"(barrier), "r"(static_cast<int>(mine))
      : "memory");
#endif
}

/// Hopper: the map will be used soon.
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

/// Of this multiprocessor's clock; wraps around.
__device__ __forceinline__ unsigned cycle() {
  unsigned now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
  return now;
}

/// So many threads of a block meet at hardware barrier `id` (1 … 15).
__device__ __forceinline__ void meet(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// All threads of all blocks of a cluster arrive, and wait for each other. By whole warps. Says that the
// blocks have begun, and what barrier_publish() made known; orders no other memory (that would flush it all).
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __syncwarp();
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/// Our own shared address as block `rank` of the cluster has it.
__device__ __forceinline__ Address address_at(Address at, int rank) {
  Address there = at;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
#endif
  return there;
}

/// Stores to another block's shared memory: four of the bytes that its barrier expects.
__device__ __forceinline__ void send(Address to, float value, Address barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(__float_as_uint(value)), "r"(barrier)
               : "memory");
#endif
}

/// Sixteen bytes of them, or eight.
__device__ __forceinline__ void send(Address to, float4 values, Address barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w), "r"(barrier)
      : "memory");
#endif
}
__device__ __forceinline__ void send(Address to, float2 values, Address barrier) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(values.x), "f"(values.y), "r"(barrier)
               : "memory");
#endif
}
__device__ __forceinline__ void send(Address to, const float (&values)[4], Address barrier) {
  send(to, make_float4(values[0], values[1], values[2], values[3]), barrier);
}
__device__ __forceinline__ void send(Address to, const float (&values)[2], Address barrier) {
  send(to, make_float2(values[0], values[1]), barrier);
}

/// d += a · b, 16 × 8 from 16 × 16 (row-major) and 16 × 8 (column-major), sums in fp32.
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1);

template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                                   std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                                   std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                            std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                            std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace troupe::cuda::stream
