#pragma once
// A block's slice of a row of logits: loading, the largest logit, log-probabilities, logit processors.
#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/batch.h"
#include "kernels/cuda/sample/ordered.cuh"
#include "kernels/cuda/sample/team.cuh"
#include "kernels/sample.h"

namespace troupe::kernels::cuda {

/// This block's part of a row: ids [begin, begin + count). `data` is the block's copy, first of the logits,
/// later of the sampling weights; in shared memory (Resident) or in device memory. Unless a function says
/// otherwise, thread i / 4 % Threads handles element i.
template <bool Resident, int Threads>
struct LogitSlice {
  static constexpr bool kResident = Resident;
  static constexpr int kThreads = Threads;

  float* data = nullptr;
  float* row = nullptr;  ///< these logits in the op's array
  int begin = 0;
  int count = 0;
  bool vectors = true;  ///< true: `data` is 16-byte aligned

  __device__ std::uint32_t* weights() const { return reinterpret_cast<std::uint32_t*>(data); }
  __device__ float4 four(int vector) const {
    if (Resident || vectors) return reinterpret_cast<const float4*>(data)[vector];
    const float* x = data + 4 * vector;
    return {x[0], x[1], x[2], x[3]};
  }

  /// Visits this thread's elements in rising order: vector(i, values) for elements i … i + 3, and single(i,
  /// value) for the elements of the last, partial vector.
  template <class Vector, class Single>
  __device__ __forceinline__ void each(Vector&& vector, Single&& single) const {
    const int full = count / 4;
#pragma unroll 2
    for (int v = static_cast<int>(threadIdx.x); v < full; v += Threads) vector(4 * v, four(v));
    if (count % 4 != 0 && static_cast<int>(threadIdx.x) == full % Threads) {
#pragma unroll 1
      for (int i = 4 * full; i < count; ++i) single(i, data[i]);
    }
  }
  template <class Single>
  __device__ __forceinline__ void each(Single&& single) const {
    each(
        [&](int i, float4 z) {
          single(i, z.x);
          single(i + 1, z.y);
          single(i + 2, z.z);
          single(i + 3, z.w);
        },
        single);
  }

  /// Replaces each logit z of this thread by the weight f(z).
  template <class F>
  __device__ __forceinline__ void make_weights(F&& f) const {
    each(
        [&](int i, float4 z) {
          *reinterpret_cast<uint4*>(weights() + i) = {f(z.x), f(z.y), f(z.z), f(z.w)};
        },
        [&](int i, float z) { weights()[i] = f(z); });
  }

  /// Copies the row's logits to `data`. Until the next barrier, a thread may read only its own elements.
  __device__ void load() const {
    const bool aligned = reinterpret_cast<std::uint64_t>(row) % 16 == 0;
    const int full = count / 4;
    for (int v = static_cast<int>(threadIdx.x); 4 * v < count; v += Threads) {
      if (v < full && aligned) {
        copy<16>(4 * v);
      } else {
        for (int i = 4 * v; i < 4 * v + 4 && i < count; ++i) copy<4>(i);
      }
    }
    if constexpr (Resident) {
      ptx::copy_async_commit();
      ptx::copy_async_wait<0>();
    }
  }

 private:
  template <int Bytes>
  __device__ __forceinline__ void copy(int i) const {
    if constexpr (Resident) {
      if constexpr (Bytes == 16) {
        ptx::copy_async_16(data + i, row + i);
      } else {
        ptx::copy_async_4(data + i, row + i);
      }
    } else if constexpr (Bytes == 16) {
      *reinterpret_cast<float4*>(data + i) = *reinterpret_cast<const float4*>(row + i);
    } else {
      data[i] = row[i];
    }
  }
};

template <class S>
using TeamOf = TeamMemory<S::kResident>;

/// ordered() of the row's largest logit, or kNotFinite if a raw logit is not finite. Takes one round. The
/// first call (which == 0) is about the raw logits and also waits for the team; the second is about processed
/// ones, which are finite or -infinity.
template <class S>
__device__ unsigned long long find_largest(const S& slice, TeamOf<S>& team, Exchange& exchange, int which) {
  float best = -INFINITY;
  float poison = 0;  // becomes NaN if an element is not finite
  int at = -1;       // of the vector that contains `best`, then of `best` itself
  slice.each(
      [&](int i, float4 z) {
        poison =
            __fmaf_rn(z.x, 0.0f, __fmaf_rn(z.y, 0.0f, __fmaf_rn(z.z, 0.0f, __fmaf_rn(z.w, 0.0f, poison))));
        const float largest = fmaxf(fmaxf(z.x, z.y), fmaxf(z.z, z.w));
        if (largest > best) {
          best = largest;
          at = i;
        }
      },
      [&](int i, float z) {
        poison = __fmaf_rn(z, 0.0f, poison);
        if (z > best) {
          best = z;
          at = i;
        }
      });
  unsigned long long own = 0;
  if (at >= 0) {
    while (slice.data[at] != best) ++at;
    own = ordered(best, slice.begin + at);
  }
  if (which == 0 && !(poison == 0)) own = kNotFinite;
  own = block_max(own, team.of_block.words);
  if (which == 0) exchange.wait_for_team();
  exchange.exchange(team.largest[which], own);
  return warp_max(lane() < static_cast<int>(team_size()) ? team.largest[which][lane()] : 0);
}

/// Sets team.normaliser to the log of the sum of e^z; other threads may read it after a barrier. Terms are
/// integers in units of 2^-40, so the sum is exact in any order. Takes one round.
template <class S>
__device__ void normalise(const S& slice, TeamOf<S>& team, Exchange& exchange, float largest) {
  unsigned long long sum = 0;
  slice.each([&](int, float z) { sum += __float2ull_rn(__expf(z - largest) * 0x1p40f); });
  sum = block_sum(sum, team.of_block.words);
  exchange.exchange(team.exp_sum, sum);
  if (threadIdx.x == 0) {
    unsigned long long all = 0;
    for (unsigned r = 0; r < team_size(); ++r) all += team.exp_sum[r];
    team.normaliser = static_cast<float>(largest + log(static_cast<double>(all) * 0x1p-40));
  }
}

/// Scratch memory of top_logits().
struct TopMemory {
  unsigned long long of_warp[kMaxWarps * kMaxTopLogprobs];
  unsigned long long of_block[kTeamBlocks * kMaxTopLogprobs];  // used in the first block only
};

/// The number of elements of `all` that are larger than `value`.
__device__ __forceinline__ int rank_of(unsigned long long value, const unsigned long long* all, int count) {
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) rank += all[i] > value;
  return rank;
}

/// Writes the row's `wanted` largest logits as log-probabilities to `top`. Needs team.normaliser; takes one
/// round.
///
/// Each warp takes its largest elements one by one. Each lane keeps its largest element not yet taken; after
/// one is taken, the whole warp searches that lane's next. Once the warps together have taken `wanted`
/// elements, the smallest of them is a lower bound for what else a warp must take. Then the warps' candidates
/// are ranked within the block, then the blocks' within the team.
template <class S>
__device__ void top_logits(const S& slice, TeamOf<S>& team, Exchange& exchange, TopMemory& memory, int wanted,
                           TopLogprob* top) {
  unsigned long long best = 0;  // this lane's largest element not yet taken
  slice.each([&](int i, float z) { best = max(best, ordered(z, slice.begin + i)); });
  __syncthreads();  // all threads may read the whole slice
  const int per_warp = (wanted + warps() - 1) / warps();
  unsigned long long bound = 0;
  unsigned long long last = 0;
  int taken = 0;
  for (; taken < wanted; ++taken) {
    if (taken == per_warp) {
      if (lane() == 0) team.of_block.words[warp()] = last;
      __syncthreads();
      bound = ~warp_max(lane() < warps() ? ~team.of_block.words[lane()] : 0);
    }
    const unsigned long long next = warp_max(best);
    if (taken >= per_warp && (next < bound || next == 0)) break;
    if (lane() == 0) memory.of_warp[warp() * wanted + taken] = next;
    last = next;
    if (next == 0) continue;
    const int owner = __ffs(static_cast<int>(__ballot_sync(kAll, best == next))) - 1;
    unsigned long long found = 0;
    for (int j = lane();; j += 32) {  // element j of the owner
      const int i = 4 * (32 * warp() + owner + j / 4 * S::kThreads) + j % 4;
      if (i >= slice.count) break;
      const unsigned long long candidate = ordered(slice.data[i], slice.begin + i);
      if (candidate < next) found = max(found, candidate);
    }
    found = warp_max(found);
    if (lane() == owner) best = found;
  }
  for (int i = taken + lane(); i < wanted; i += 32) memory.of_warp[warp() * wanted + i] = 0;
  __syncthreads();
  // Each block sends `wanted` values to the first block only.
  exchange.expect(team_rank() == 0 ? 8 * static_cast<unsigned>(wanted) * team_size() : 0);
  unsigned long long* finals = memory.of_block + team_rank() * static_cast<unsigned>(wanted);
  const int candidates = warps() * wanted;  // less than threads
  const int thread = static_cast<int>(threadIdx.x);
  const unsigned long long value = thread < candidates ? memory.of_warp[thread] : 0;
  const int present = __syncthreads_count(value != 0);
  if (value != 0) {
    const int rank = rank_of(value, memory.of_warp, candidates);
    if (rank < wanted) exchange.send(finals + rank, 0, value);
  }
  if (thread >= present && thread < wanted) exchange.send(finals + thread, 0, 0ull);
  exchange.wait();
  if (team_rank() != 0) return;
  const int all = static_cast<int>(team_size()) * wanted;  // less than threads
  if (thread >= all) return;
  const unsigned long long final = memory.of_block[thread];
  if (final == 0) return;
  const int rank = rank_of(final, memory.of_block, all);
  if (rank < wanted) top[rank] = {id_of(final), logit_of(final) - team.normaliser};
}

// Logit processors. They change few ids: those of the sequence so far, the bias list and the ban list. One
// thread claims each such id of the slice by setting a bit, and applies all processors to it. The op's array
// keeps the raw logits, so the slice's copy of a logit can hold the token's count in between.

/// Calls f(index in the slice, raw logit) for this thread's share of the row's ids first … end - 1, if they
/// are in the slice. Keeps several loads in flight. Reads the logit only if Logits.
template <bool Logits, class S, class F>
__device__ __forceinline__ void each_token(const S& slice, const SampleRow& row, int first, int end, F&& f) {
  constexpr int kInFlight = 8;
  const auto id_of = [&](int i) {
    if (row.blocks == nullptr) return row.tokens[i];
    return row.tokens[row.blocks[i / kBlockTokens] * row.block_ids + i % kBlockTokens];
  };
  for (int at = first + static_cast<int>(threadIdx.x); at < end; at += kInFlight * S::kThreads) {
    int places[kInFlight];
    float logits[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int i = at + j * S::kThreads;
      places[j] = i < end ? id_of(i) - slice.begin : -1;
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const bool inside = static_cast<unsigned>(places[j]) < static_cast<unsigned>(slice.count);
      if (!inside) places[j] = -1;
      if (Logits && inside) logits[j] = slice.row[places[j]];
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (places[j] >= 0) f(places[j], Logits ? logits[j] : 0.0f);
    }
  }
}

/// True if a repetition, presence or frequency penalty applies.
__device__ inline bool has_penalties(const SampleRow& row) {
  return row.repetition_penalty != 1 || row.presence_penalty != 0 || row.frequency_penalty != 0;
}

/// True if process() changes any logit.
__device__ inline bool has_processors(const SampleRow& row) {
  return row.bias_count > 0 || row.banned_count > 0 || has_penalties(row);
}

/// Sets the logits that the mask does not allow to -infinity. Each thread changes its own elements.
template <class S>
__device__ void apply_mask(const S& slice, const std::uint32_t* mask) {
  // A slice begins at a multiple of 4, so that four elements have their bits in one word.
  const auto bits_at = [&](int i) {
    const auto id = static_cast<unsigned>(slice.begin + i);
    return mask[id / 32] >> id % 32;
  };
  const int full = slice.count / 4;
#pragma unroll 2
  for (int v = static_cast<int>(threadIdx.x); v < full; v += S::kThreads) {
    const std::uint32_t bits = bits_at(4 * v) & 15;
    if (bits == 15) continue;
    float4 z = slice.four(v);
    z.x = (bits & 1) != 0 ? z.x : -INFINITY;
    z.y = (bits & 2) != 0 ? z.y : -INFINITY;
    z.z = (bits & 4) != 0 ? z.z : -INFINITY;
    z.w = (bits & 8) != 0 ? z.w : -INFINITY;
    *reinterpret_cast<float4*>(slice.data + 4 * v) = z;
  }
  if (slice.count % 4 != 0 && static_cast<int>(threadIdx.x) == full % S::kThreads) {
#pragma unroll 1
    for (int i = 4 * full; i < slice.count; ++i) {
      if ((bits_at(i) & 1) == 0) slice.data[i] = -INFINITY;
    }
  }
}

__device__ __forceinline__ float bounded(float z) { return fminf(fmaxf(z, -FLT_MAX), FLT_MAX); }

/// The processed logit of `id`. z: its raw logit; known: it occurs in the sequence; count: how often it
/// occurs in the output.
__device__ __noinline__ float processed(const SampleRow& row, int id, float z, bool known,
                                        std::uint32_t count) {
  for (int i = 0; i < row.bias_count; ++i) {
    if (row.bias[i].token == id) z = bounded(__fadd_rn(z, row.bias[i].bias));
  }
  for (int i = 0; i < row.banned_count; ++i) {
    if (row.banned[i] == id) z = kBannedLogit;
  }
  if (!known) return z;
  z = z > 0 ? __fdiv_rn(z, row.repetition_penalty) : __fmul_rn(z, row.repetition_penalty);
  if (count > 0) {
    const float all = __fmul_rn(row.frequency_penalty, static_cast<float>(count));
    z = __fsub_rn(z, __fadd_rn(all, row.presence_penalty));
  }
  return bounded(z);
}

/// Applies the row's logit processors to slice.data. `claimed`: scratch memory, a bit per element. Ends with
/// a block barrier.
template <class S>
__device__ void process(const S& slice, const SampleRow& row, std::uint32_t* claimed) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto claim = [&](int i) {
    const std::uint32_t bit = 1u << (i % 32);
    return (atomicOr(claimed + i / 32, bit) & bit) == 0;
  };
  __syncthreads();  // `claimed` may overlap memory in use until here
  for (int i = thread; 32 * i < slice.count; i += S::kThreads) claimed[i] = 0;
  const bool counting = row.presence_penalty != 0 || row.frequency_penalty != 0;
  const int known = has_penalties(row) ? row.known_tokens : 0;
  std::uint32_t* counts = slice.weights();
  if (counting) {
    each_token<false>(slice, row, 0, known, [&](int i, float) { counts[i] = 0; });
    __syncthreads();
    each_token<false>(slice, row, row.prompt_tokens, known, [&](int i, float) { atomicAdd(counts + i, 1u); });
  }
  __syncthreads();
  each_token<true>(slice, row, 0, known, [&](int i, float raw) {
    if (!claim(i)) return;
    const std::uint32_t count = counting ? counts[i] : 0;
    slice.data[i] = processed(row, slice.begin + i, raw, true, count);
  });
  __syncthreads();
  for (int j = thread; j < row.bias_count + row.banned_count; j += S::kThreads) {
    const TokenId id = j < row.bias_count ? row.bias[j].token : row.banned[j - row.bias_count];
    const int i = id - slice.begin;
    if (static_cast<unsigned>(i) >= static_cast<unsigned>(slice.count) || !claim(i)) continue;
    slice.data[i] = processed(row, id, slice.data[i], false, 0);
  }
  __syncthreads();
}

}  // namespace troupe::kernels::cuda
