#pragma once
// Blocks of a cluster: their barrier, and stores into each other's shared memory. Hopper.
#include <cstdint>

namespace troupe::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// This thread has come; what it stored before is seen behind the others' cluster_await(). It may leave
/// without awaiting.
__device__ __forceinline__ void cluster_come() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
/// Until all threads of the cluster have come.
__device__ __forceinline__ void cluster_await() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// Stores to where `own` is in block `rank` of the cluster, which is known to run.
__device__ __forceinline__ void store_in(int rank, float* own, float value) {
  asm volatile(
      "{\n.reg .b32 at;\n"
      "mapa.shared::cluster.u32 at, %0, %1;\n"
      "st.shared::cluster.f32 [at], %2;\n}" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(own))),
      "r"(rank), "f"(value)
      : "memory");
}

#else  // Never launched there; the kernels have to compile.

__device__ __forceinline__ void cluster_come() {}
__device__ __forceinline__ void cluster_await() {}
__device__ __forceinline__ void store_in(int, float*, float) {}

#endif

}  // namespace troupe::cuda
