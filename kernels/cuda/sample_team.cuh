#pragma once
// The blocks that work on one row of logits together, and what they tell each other.
//
// On Hopper a row's blocks are a cluster: each keeps its slice of the row in its own shared memory, and a
// block writes its part of a result straight into the shared memory of all of them, so that after one
// barrier everyone knows the whole. Elsewhere a row has one block, and a barrier of the team is one of
// the block. Everything exchanged is an integer: sums come out the same in any order.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/sample.h"

namespace troupe::kernels::cuda {

inline constexpr int kTeamBlocks = 8;  // the largest portable cluster
inline constexpr int kMaxWarps = 16;

__device__ __forceinline__ unsigned team_rank() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

__device__ __forceinline__ unsigned team_size() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  unsigned size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#else
  return 1;
#endif
}

/// Every arrival is followed by one wait. What was written anywhere before an arrival is seen after the wait.
__device__ __forceinline__ void team_arrive() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void team_wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

__device__ __forceinline__ void team_sync() {
  team_arrive();
  team_wait();
}

/// The same variable in the shared memory of another block of the team.
template <class T>
__device__ __forceinline__ T* of_block(T* own, unsigned rank) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  std::uint64_t address;
  asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(reinterpret_cast<std::uint64_t>(own)), "r"(rank));
  return reinterpret_cast<T*>(address);
#else
  return own;
#endif
}

/// How many weights, and their sum.
struct Tally {
  unsigned long long sum = 0;
  std::uint32_t number = 0;
};

__device__ __forceinline__ Tally operator+(Tally a, Tally b) { return {a.sum + b.sum, a.number + b.number}; }

/// Where a threshold was found: the bin, what lies above it, and how many are in it.
struct Crossing {
  int bin = 0;
  Tally above{};
  std::uint32_t number = 0;
};

/// A block's shared memory beside its slice and its tables. Arrays over the team hold what each block found;
/// the barrier after a member's writing is the one that its readers need, so each is written once a row.
struct TeamMemory {
  SampleRow row;
  unsigned long long peak[2][kTeamBlocks];  // of the raw and of the processed logits
  unsigned long long exp_sum[kTeamBlocks];
  Tally kept[kTeamBlocks];
  Tally drawn[kTeamBlocks];
  union {
    unsigned long long words[kMaxWarps];
    Tally tallies[kMaxWarps];
  } warps;
  Crossing crossing;
  float normaliser;
};

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x & 31); }
__device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x >> 5); }
__device__ __forceinline__ int warps() { return static_cast<int>(blockDim.x >> 5); }

inline constexpr unsigned kAll = 0xffffffffu;

__device__ __forceinline__ unsigned long long warp_max(unsigned long long v) {
  const auto high = static_cast<unsigned>(v >> 32);
  const unsigned top = __reduce_max_sync(kAll, high);
  const unsigned low = __reduce_max_sync(kAll, high == top ? static_cast<unsigned>(v) : 0);
  return static_cast<unsigned long long>(top) << 32 | low;
}

__device__ __forceinline__ unsigned long long warp_sum(unsigned long long v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(kAll, v, offset);
  return v;
}

__device__ __forceinline__ Tally warp_sum(Tally t) {
  return {warp_sum(t.sum), __reduce_add_sync(kAll, t.number)};
}

/// Sum of those of lower lanes and its own.
__device__ __forceinline__ unsigned long long warp_scan(unsigned long long v) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const unsigned long long below = __shfl_up_sync(kAll, v, offset);
    if (lane() >= offset) v += below;
  }
  return v;
}

__device__ __forceinline__ Tally warp_scan(Tally t) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const unsigned long long sum = __shfl_up_sync(kAll, t.sum, offset);
    const std::uint32_t number = __shfl_up_sync(kAll, t.number, offset);
    if (lane() >= offset) t = t + Tally{sum, number};
  }
  return t;
}

/// Of the whole block, known to all its threads. `places` is free again after the next barrier.
__device__ __forceinline__ unsigned long long block_max(unsigned long long v, unsigned long long* places) {
  v = warp_max(v);
  if (lane() == 0) places[warp()] = v;
  __syncthreads();
  return warp_max(lane() < warps() ? places[lane()] : 0);
}

__device__ __forceinline__ unsigned long long block_sum(unsigned long long v, unsigned long long* places) {
  v = warp_sum(v);
  if (lane() == 0) places[warp()] = v;
  __syncthreads();
  return warp_sum(lane() < warps() ? places[lane()] : 0);
}

__device__ __forceinline__ Tally block_sum(Tally t, Tally* places) {
  t = warp_sum(t);
  if (lane() == 0) places[warp()] = t;
  __syncthreads();
  return warp_sum(lane() < warps() ? places[lane()] : Tally{});
}

/// Sum of those of lower threads and its own.
__device__ __forceinline__ Tally block_scan(Tally t, Tally* places) {
  t = warp_scan(t);
  if (lane() == 31) places[warp()] = t;
  __syncthreads();
  return t + warp_sum(lane() < warp() ? places[lane()] : Tally{});
}

/// Puts `value` of this block into places[rank] of every block of the team; known after the next team
/// barrier.
template <class T>
__device__ __forceinline__ void publish(T* places, const T& value) {
  if (threadIdx.x < team_size()) of_block(places, threadIdx.x)[team_rank()] = value;
}

}  // namespace troupe::kernels::cuda
