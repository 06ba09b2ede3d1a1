#pragma once
// The blocks that work on one row of logits together, and what they tell each other.
//
// On Hopper a row's blocks are a cluster: each keeps its slice of the row in its own shared memory, and a
// block sends its part of a result straight into the shared memory of all of them. What is sent counts down
// a barrier beside the place where it arrives, so waiting costs no fence of the whole chip, as the cluster's
// own barrier does (about as long as a pass over the slice). Elsewhere a row has one block, and waiting for
// messages is a barrier of that block. Everything sent is an integer: sums come out the same in any order.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/sample.h"

namespace troupe::kernels::cuda {

inline constexpr int kTeamBlocks = 8;  // the largest portable cluster
inline constexpr int kMaxWarps = 16;

__device__ __forceinline__ unsigned team_rank() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

/// kTeamBlocks where teams are clusters, else 1: as the host launches.
__device__ constexpr unsigned team_size() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  return kTeamBlocks;
#else
  return 1;
#endif
}

/// The value of the same variable, of 8 or 16 bytes, in the shared memory of another block of the team.
template <class T>
__device__ __forceinline__ T fetch(const T* own, unsigned rank) {
  static_assert((sizeof(T) == 8 || sizeof(T) == 16) && alignof(T) == sizeof(T));
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank));
  T value;
  auto* words = reinterpret_cast<unsigned long long*>(&value);
  if constexpr (sizeof(T) == 8) {
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(words[0]) : "r"(address));
  } else {
    asm volatile("ld.shared::cluster.v2.u64 {%0, %1}, [%2];" : "=l"(words[0]), "=l"(words[1]) : "r"(address));
  }
  return value;
#else
  return *own;
#endif
}

/// A block's letter box. The team goes through the same turns in the same order. In a turn a block
///   expects so many bytes (all threads call),
///   sends to any block's places, 8 or 16 bytes at a time (single threads call),
///   awaits what it expects (all threads call; a barrier of the block at its end).
/// In all turns but one the blocks all send to all, so that none is ever two turns ahead of another, and two
/// barriers in alternation suffice.
class Mail {
 public:
  struct Box {
    alignas(8) std::uint64_t barriers[2];
  };

  /// Everyone: opened() before the first turn, as late as can be.
  __device__ explicit Mail(Box& box) : box_(box) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; ++i)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier(i)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#endif
    arrive();
  }
  __device__ void opened() const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
  }

  __device__ __forceinline__ void expect(unsigned bytes) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier(turn_ % 2)),
                   "r"(bytes)
                   : "memory");
    }
#endif
  }

  /// `place` is the sender's own variable of that name.
  template <class T>
  __device__ __forceinline__ void send(T* place, unsigned rank, const T& value) const {
    static_assert(sizeof(T) == 8 || sizeof(T) == 16);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const unsigned to = mapped(static_cast<unsigned>(__cvta_generic_to_shared(place)), rank);
    const unsigned counter = mapped(barrier(turn_ % 2), rank);
    const auto* words = reinterpret_cast<const unsigned long long*>(&value);
    if constexpr (sizeof(T) == 8) {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %2, [%1];" ::"r"(to),
                   "r"(counter), "l"(words[0])
                   : "memory");
    } else {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%2, %3}, [%1];" ::"r"(to),
          "r"(counter), "l"(words[0]), "l"(words[1])
          : "memory");
    }
#else
    *place = value;
#endif
  }

  __device__ __forceinline__ void await() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    unsigned done = 0;
    while (done == 0) {
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(barrier(turn_ % 2)), "r"(turn_ / 2 % 2)
          : "memory");
    }
    ++turn_;
#endif
    __syncthreads();
  }

  /// No block goes while another may look into its memory: everyone, once, when nobody will fetch() any more,
  /// and at the end. The turns see to that too; this can be seen from outside.
  __device__ __forceinline__ void leave() const { arrive(); }
  __device__ __forceinline__ void left() const {
    __syncwarp();
    opened();
  }

  /// A whole turn: each block's value, the same for all its threads, into places[rank] of everyone.
  template <class T>
  __device__ __forceinline__ void exchange(T* places, const T& value) {
    expect(static_cast<unsigned>(sizeof(T)) * team_size());
    if (threadIdx.x < team_size()) send(places + team_rank(), threadIdx.x, value);
    await();
  }

 private:
  /// At the cluster's barrier, which opened() waits for.
  __device__ __forceinline__ void arrive() const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }
  __device__ __forceinline__ unsigned barrier(unsigned i) const {
    return static_cast<unsigned>(__cvta_generic_to_shared(&box_.barriers[i]));
  }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __device__ static __forceinline__ unsigned mapped(unsigned own, unsigned rank) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own), "r"(rank));
    return address;
  }
#endif

  Box& box_;
  unsigned turn_ = 0;
};

/// How many weights, and their sum.
struct alignas(16) Tally {
  unsigned long long sum = 0;
  std::uint32_t number = 0;
};

__device__ __forceinline__ Tally operator+(Tally a, Tally b) { return {a.sum + b.sum, a.number + b.number}; }

/// A tally on its way. Where a row has fewer than 2^17 ids, weights of at most 2^30 and numbers fit one word,
/// and words add up as tallies do.
template <bool Resident>
struct Parcel {
  using Type = unsigned long long;
  static constexpr int kSumBits = 47;
  __device__ static __forceinline__ Type pack(Tally t) {
    return t.sum | static_cast<unsigned long long>(t.number) << kSumBits;
  }
  __device__ static __forceinline__ Tally open(Type p) {
    return {p & ((1ull << kSumBits) - 1), static_cast<std::uint32_t>(p >> kSumBits)};
  }
};
template <>
struct Parcel<false> {
  using Type = Tally;
  __device__ static __forceinline__ Type pack(Tally t) { return t; }
  __device__ static __forceinline__ Tally open(Type p) { return p; }
};

/// Where a threshold was found: the bin, what lies above it, and what is in it.
struct Crossing {
  int bin = 0;
  std::uint32_t number = 0;
  unsigned long long rest = 0;
  Tally above{};
};

inline constexpr int kGroups = 16;  // of bins of a table

/// A block's shared memory beside its slice and its tables. Arrays over the team hold what each block sent.
/// Four blocks of 256 threads and the longest vocabulary fit a multiprocessor to the last bytes, hence the
/// unions: who sends groups knows that everyone has read the peaks and exp_sum, and who sends `drawn` that
/// everyone has read the groups.
template <bool Resident>
struct TeamMemory {
  using Tallies = typename Parcel<Resident>::Type;
  SampleRow row;
  Tallies kept[kTeamBlocks];
  union {
    struct {
      unsigned long long peak[2][kTeamBlocks];  // of the raw and of the processed logits
      unsigned long long exp_sum[kTeamBlocks];
      Tallies drawn[kTeamBlocks];
    };
    Tallies groups[kTeamBlocks][kGroups];
  };
  union {
    unsigned long long words[kMaxWarps];
    Tallies tallies[kMaxWarps];
    Crossing crossing;
  } of_block;
  unsigned long long signal;
  Mail::Box box;
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

template <class T>
__device__ __forceinline__ T block_sum(T v, T* places) {
  v = warp_sum(v);
  if (lane() == 0) places[warp()] = v;
  __syncthreads();
  return warp_sum(lane() < warps() ? places[lane()] : T{});
}

/// Sum of those of lower threads and its own.
template <class T>
__device__ __forceinline__ T block_scan(T v, T* places) {
  v = warp_scan(v);
  if (lane() == 31) places[warp()] = v;
  __syncthreads();
  return v + warp_sum(lane() < warp() ? places[lane()] : T{});
}

}  // namespace troupe::kernels::cuda
