#pragma once
// A team: the blocks that process one row of logits, their shared memory, and how they exchange values.
//
// On Hopper a team is a cluster. Each block keeps a slice of the row in its shared memory and sends its part
// of a result directly into the shared memory of all blocks. A message completes on a barrier of the
// receiver, so a wait needs no fence across the chip; the cluster's own barrier would need one, which takes
// about as long as a pass over the slice. On other GPUs a team is one block, and a wait is a block barrier.
// All exchanged values are integers, so sums do not depend on the order.
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp_scan.cuh"
#include "kernels/sample.h"

namespace troupe::kernels::cuda {

inline constexpr int kTeamBlocks = 8;  // the largest portable cluster
inline constexpr int kMaxWarps = 16;

__device__ __forceinline__ unsigned team_rank() { return ptx::cluster_rank(); }

/// Blocks of a team: kTeamBlocks on Hopper, else 1. The host launches the same number.
__device__ constexpr unsigned team_size() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  return kTeamBlocks;
#else
  return 1;
#endif
}

/// Reads the variable `own` (8 or 16 bytes of shared memory) of block `rank` of the team.
template <class T>
__device__ __forceinline__ T fetch(const T* own, unsigned rank) {
  static_assert((sizeof(T) == 8 || sizeof(T) == 16) && alignof(T) == sizeof(T));
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const ptx::SharedAddress from = ptx::peer_address(own, rank);
  T value;
  if constexpr (sizeof(T) == 8) {
    *reinterpret_cast<unsigned long long*>(&value) = ptx::load_peer_u64(from);
  } else {
    *reinterpret_cast<ulonglong2*>(&value) = ptx::load_peer_u64x2(from);
  }
  return value;
#else
  return *own;
#endif
}

/// Exchanges values among the blocks of a team, in rounds. All blocks go through the same rounds in the same
/// order. In a round a block
///   calls expect() with the number of bytes that it will receive (all threads),
///   calls send() to variables of any block, 8 or 16 bytes each (single threads),
///   calls wait() for the bytes it expects (all threads; ends with a block barrier).
/// In all rounds but one, all blocks send to all. So no block is two rounds ahead of another, and two
/// alternating barriers suffice.
class Exchange {
 public:
  struct Barriers {
    alignas(8) std::uint64_t barriers[2];
  };

  /// All threads; wait_for_team() must follow before the first round, as late as possible.
  __device__ explicit Exchange(Barriers& barriers) : barriers_(barriers) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; ++i) ptx::mbarrier_init(barrier(i), 1);
      ptx::fence_mbarrier_init();
    }
#endif
    arrive();
  }
  /// Waits until all blocks of the team have started and initialised their barriers.
  __device__ void wait_for_team() const { ptx::cluster_wait(); }

  __device__ __forceinline__ void expect(unsigned bytes) const {
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect(barrier(round_ % 2), bytes);
  }

  /// Sends to the variable of block `rank` that has the address `place` in the sender.
  template <class T>
  __device__ __forceinline__ void send(T* place, unsigned rank, const T& value) const {
    static_assert(sizeof(T) == 8 || sizeof(T) == 16);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Words = std::conditional_t<sizeof(T) == 8, unsigned long long, ulonglong2>;
    ptx::store_async(ptx::peer_address(place, rank), *reinterpret_cast<const Words*>(&value),
                     ptx::peer_address(barrier(round_ % 2), rank));
#else
    *place = value;
#endif
  }

  __device__ __forceinline__ void wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    ptx::mbarrier_wait(barrier(round_ % 2), round_ / 2 % 2);
    ++round_;
#endif
    __syncthreads();
  }

  /// No block may exit while another can still read its shared memory. All threads call announce_exit() once
  /// they will fetch() no more, and wait_for_exit() at the end. The rounds imply this already; these calls
  /// make it explicit.
  __device__ __forceinline__ void announce_exit() const { arrive(); }
  __device__ __forceinline__ void wait_for_exit() const {
    __syncwarp();
    wait_for_team();
  }

  /// A complete round: stores each block's value (the same in all its threads) in places[rank] of all blocks.
  template <class T>
  __device__ __forceinline__ void exchange(T* places, const T& value) {
    expect(static_cast<unsigned>(sizeof(T)) * team_size());
    if (threadIdx.x < team_size()) send(places + team_rank(), threadIdx.x, value);
    wait();
  }

 private:
  /// Arrives at the cluster's barrier, on which wait_for_team() waits.
  __device__ __forceinline__ void arrive() const { ptx::warp_cluster_arrive_relaxed(); }
  __device__ __forceinline__ ptx::SharedAddress barrier(unsigned i) const {
    return ptx::shared_address(&barriers_.barriers[i]);
  }

  Barriers& barriers_;
  unsigned round_ = 0;
};

/// A number of weights and their sum.
struct alignas(16) Tally {
  unsigned long long sum = 0;
  std::uint32_t number = 0;
};

__device__ __forceinline__ Tally operator+(Tally a, Tally b) { return {a.sum + b.sum, a.number + b.number}; }

/// A tally as it is exchanged. If a row has fewer than 2^17 ids, the sum of its weights (each at most 2^30)
/// and their number fit one word, and adding words adds tallies.
template <bool Resident>
struct PackedTally {
  using Type = unsigned long long;
  static constexpr int kSumBits = 47;
  __device__ static __forceinline__ Type pack(Tally t) {
    return t.sum | static_cast<unsigned long long>(t.number) << kSumBits;
  }
  __device__ static __forceinline__ Tally unpack(Type p) {
    return {p & ((1ull << kSumBits) - 1), static_cast<std::uint32_t>(p >> kSumBits)};
  }
};
template <>
struct PackedTally<false> {
  using Type = Tally;
  __device__ static __forceinline__ Type pack(Tally t) { return t; }
  __device__ static __forceinline__ Tally unpack(Type p) { return p; }
};

/// The bin of a table in which a threshold lies.
struct Crossing {
  int bin = 0;                  // -1: below the table
  std::uint32_t number = 0;     // Bin::count of it, over the team
  unsigned long long rest = 0;  // Bin::rest of it, over the team
  Tally above{};                // of the weights in higher bins
};

inline constexpr int kGroups = 16;  // a table's bins are summed in so many groups

/// A block's shared memory in addition to its slice and tables. Arrays of kTeamBlocks hold what each block
/// sent. The unions save memory: four blocks with 256 threads and the longest vocabulary just fit a
/// multiprocessor. A block sends `groups` only after all have read `largest` and `exp_sum`, and `drawn` only
/// after all have read `groups`.
template <bool Resident>
struct TeamMemory {
  using Tallies = typename PackedTally<Resident>::Type;
  SampleRow row;
  Tallies kept[kTeamBlocks];
  union {
    struct {
      unsigned long long largest[2][kTeamBlocks];  // ordered(); of the raw and of the processed logits
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
  unsigned long long signal;  // sent only to be waited for
  Exchange::Barriers barriers;
  float normaliser;  // log of the sum of e^logit
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

/// Inclusive prefix sum over the lanes.
__device__ __forceinline__ unsigned long long warp_scan(unsigned long long v) {
  return inclusive_sum(v, lane());
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

// Reductions over the block; all threads get the result. `places` may be reused after the next block barrier.
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

/// Inclusive prefix sum over the threads.
template <class T>
__device__ __forceinline__ T block_scan(T v, T* places) {
  v = warp_scan(v);
  if (lane() == 31) places[warp()] = v;
  __syncthreads();
  return v + warp_sum(lane() < warp() ? places[lane()] : T{});
}

}  // namespace troupe::kernels::cuda
