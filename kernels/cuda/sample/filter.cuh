#pragma once
// Sampling weights, min_p, top_k, top_p and the draw, over a row whose slices are spread over a team of
// blocks.
//
// A filter's threshold is found by a radix search instead of sorting. A weight is an integer of at most 24
// significant bits, so it converts to float exactly, and the float's bits (5 of the exponent, 23 of the
// mantissa: the weight's key) order as the weights do. The search goes down these 28 bits in tables of 512
// bins, with one pass over the weights per table: first the upper 16 octaves with 32 bins each (the lower 15
// only if the threshold is not there), then 512 bins within the bin that holds the threshold, then single
// weights. It stops early if a bin holds a single weight. A bin counts its weights and sums their keys'
// offsets from the bin's start, in units of 2^(octave - 23), so that sums stay small.
#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/sample/logits.cuh"
#include "kernels/cuda/sample/team.cuh"
#include "kernels/sampling_weight.h"

namespace troupe::kernels::cuda {

inline constexpr int kBins = 512;
inline constexpr int kBinBits = 9;
inline constexpr int kMantissa = 23;

/// The longest slice for which 32-bit bins cannot overflow (each element adds less than 2^18) and a row's
/// tally fits a one-word PackedTally.
inline constexpr int kMaxResident = (1 << 14) - 4;

template <bool Resident>
struct alignas(Resident ? 8 : 16) Bin {
  using Word = std::conditional_t<Resident, std::uint32_t, unsigned long long>;
  Word count;
  Word rest;
};

/// The weight of sampling_weight.h, bit for bit.
__device__ __forceinline__ std::uint32_t sampling_weight(float z, float largest, float scale) {
  constexpr float c1 = kPowerOfTwo[0], c2 = kPowerOfTwo[1], c3 = kPowerOfTwo[2], c4 = kPowerOfTwo[3],
                  c5 = kPowerOfTwo[4], c6 = kPowerOfTwo[5];
  constexpr float kMagic = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const float t = fmaxf(__fmul_rn(__fsub_rn(z, largest), scale), kLowestPower);
  const float shifted = __fadd_rn(t, kMagic);
  const float f = __fsub_rn(t, __fsub_rn(shifted, kMagic));
  float p = __fadd_rn(__fmul_rn(c6, f), c5);
  p = __fadd_rn(__fmul_rn(p, f), c4);
  p = __fadd_rn(__fmul_rn(p, f), c3);
  p = __fadd_rn(__fmul_rn(p, f), c2);
  p = __fadd_rn(__fmul_rn(p, f), c1);
  p = __fadd_rn(__fmul_rn(p, f), 1.0f);
  const std::uint32_t power = (__float_as_uint(shifted) << kMantissa) + (kWeightBits << kMantissa);
  return __float2uint_rz(__fadd_rn(__uint_as_float(__float_as_uint(p) + power), 0.5f));
}

/// The key of a weight > 0: octave << 23 | mantissa.
__device__ __forceinline__ std::uint32_t key_of(std::uint32_t weight) {
  return __float_as_uint(__uint2float_rn(weight)) - 0x3f800000u;
}

__device__ __forceinline__ std::uint32_t mantissa_of(std::uint32_t key) {
  return 1u << kMantissa | (key & ((1u << kMantissa) - 1));
}

/// The smallest weight of at least mantissa * 2^(octave - 23).
__device__ __forceinline__ std::uint32_t weight_of(int octave, std::uint32_t mantissa) {
  if (octave >= kMantissa) return mantissa << (octave - kMantissa);
  const int below = kMantissa - octave;
  return (mantissa + (1u << below) - 1) >> below;
}

/// The tokens that a filter keeps: weights above the threshold and the first `at_threshold` of those equal to
/// it.
struct KeptWeights {
  std::uint32_t threshold = 1;
  unsigned long long at_threshold = ~0ull;
  unsigned long long sum = 0;  // of the kept weights
};

/// A threshold, and the tally of the weights above it.
struct Threshold {
  std::uint32_t weight = 0;
  Tally above{};
};

/// The key range of one table: 512 bins of 2^shift keys each, from key `low` up.
struct BinRange {
  std::uint32_t low = 0;
  int shift = 0;

  /// The weights [first, last) have keys in this range.
  __device__ std::uint32_t first() const {
    return low == 0 ? 1 : weight_of(static_cast<int>(low >> kMantissa), mantissa_of(low));
  }
  __device__ std::uint32_t last(std::uint32_t upper) const {
    if (shift == kMantissa - 5) return low == 0 ? upper : 1u << 31;
    return weight_of(static_cast<int>(low >> kMantissa), mantissa_of(low) + (kBins << shift));
  }
  /// The sum of a bin's weights, from its Bin::count and Bin::rest.
  __device__ unsigned long long sum(int bin, unsigned long long count, unsigned long long rest) const {
    const std::uint32_t key = low + (static_cast<std::uint32_t>(bin) << shift);
    const int octave = static_cast<int>(key >> kMantissa);
    const unsigned long long all = count * mantissa_of(key) + rest;
    return octave >= kMantissa ? all << (octave - kMantissa) : all >> (kMantissa - octave);
  }
};

template <class S>
using BinOf = Bin<S::kResident>;

/// Clears the table and adds the slice's weights in [first, last) to their bins.
template <class S>
__device__ void fill(const S& slice, BinOf<S>* table, BinRange span, std::uint32_t first,
                     std::uint32_t last) {
  using Word = typename BinOf<S>::Word;
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += S::kThreads) table[i] = {0, 0};
  __syncthreads();
  const std::uint32_t width = last - first;
  const std::uint32_t mask = (1u << span.shift) - 1;
  const auto single = [&](int, float bits) {
    const std::uint32_t weight = __float_as_uint(bits);
    if (weight - first >= width) return;
    const std::uint32_t offset = key_of(weight) - span.low;
    BinOf<S>& bin = table[offset >> span.shift];
    atomicAdd(&bin.count, Word{1});
    if ((offset & mask) != 0) atomicAdd(&bin.rest, static_cast<Word>(offset & mask));
  };
  slice.each(
      [&](int i, float4 bits) {
        const std::uint32_t nearest =
            min(min(__float_as_uint(bits.x) - first, __float_as_uint(bits.y) - first),
                min(__float_as_uint(bits.z) - first, __float_as_uint(bits.w) - first));
        if (nearest >= width) return;
        single(i, bits.x);
        single(i, bits.y);
        single(i, bits.z);
        single(i, bits.w);
      },
      single);
}

/// One bin, summed over the team's tables.
struct BinContent {
  std::uint32_t number = 0;
  unsigned long long rest = 0;
};

/// A table has 16 groups of 32 bins; lane i gets a group's i-th bin from the top.
inline constexpr int kGroupBins = kBins / kGroups;
static_assert(kGroupBins == 32);

__device__ __forceinline__ int bin_of(int group) { return kGroupBins * group + kGroupBins - 1 - lane(); }

template <bool Resident>
__device__ __forceinline__ BinContent content_of(const Bin<Resident>* table, int group) {
  Bin<Resident> of[team_size()];
#pragma unroll
  for (unsigned r = 0; r < team_size(); ++r) of[r] = fetch(table + bin_of(group), r);
  BinContent content;
#pragma unroll
  for (unsigned r = 0; r < team_size(); ++r) {
    content.number += static_cast<std::uint32_t>(of[r].count);
    content.rest += of[r].rest;
  }
  return content;
}

/// Finds the bin in which the tally, counted from the top down, reaches `wanted` (a sum if by_sum, else a
/// number). `above` is the tally above the table. If the whole table does not reach it, the result has bin -1
/// and the tally of everything counted in `above`. The block's table must be complete and visible to all its
/// threads.
///
/// Blocks exchange the tallies of their groups of bins; then only the bins of one group are read from all
/// tables. Takes one round and begins another: after exchange.wait() the table may be overwritten.
template <class S>
__device__ Crossing find_crossing(const BinOf<S>* table, TeamOf<S>& team, Exchange& exchange, BinRange span,
                                  Tally above, bool by_sum, unsigned long long wanted) {
  using Tallies = PackedTally<S::kResident>;
  exchange.expect(static_cast<unsigned>(sizeof(team.groups[0])) * team_size());
  for (int group = warp(); group < kGroups; group += S::kThreads / 32) {
    const BinOf<S> bin = table[bin_of(group)];
    const auto all = warp_sum(
        Tallies::pack({span.sum(bin_of(group), bin.count, bin.rest), static_cast<std::uint32_t>(bin.count)}));
    if (lane() < static_cast<int>(team_size())) {
      exchange.send(&team.groups[team_rank()][group], static_cast<unsigned>(lane()), all);
    }
  }
  exchange.wait();
  const auto reached = [&](Tally t) { return (by_sum ? t.sum : t.number) >= wanted; };
  typename Tallies::Type own{};
  if (lane() < kGroups) {
    for (unsigned r = 0; r < team_size(); ++r) own = own + team.groups[r][kGroups - 1 - lane()];
  }
  Tally to = above + Tallies::unpack(warp_scan(own));
  const unsigned there = __ballot_sync(kAll, reached(to));
  if (there != 0 && warp() == 0) {
    const int at = __ffs(static_cast<int>(there)) - 1;
    const int group = kGroups - 1 - at;
    const Tally in_group = Tallies::unpack(own);
    const Tally before{__shfl_sync(kAll, to.sum - in_group.sum, at),
                       __shfl_sync(kAll, to.number - in_group.number, at)};
    const BinContent content = content_of(table, group);
    const Tally bin{span.sum(bin_of(group), content.number, content.rest), content.number};
    to = before + Tallies::unpack(warp_scan(Tallies::pack(bin)));
    const unsigned reach = __ballot_sync(kAll, reached(to));
    if (lane() == __ffs(static_cast<int>(reach)) - 1) {
      team.of_block.crossing = {
          bin_of(group), content.number, content.rest, {to.sum - bin.sum, to.number - bin.number}};
    }
  }
  __syncthreads();  // all threads have read the groups; the first warp has read the tables
  exchange.expect(static_cast<unsigned>(sizeof(team.signal)) * team_size());
  if (threadIdx.x < team_size()) exchange.send(&team.signal, threadIdx.x, 0ull);
  if (there == 0)
    return {.bin = -1, .above = {__shfl_sync(kAll, to.sum, 31), __shfl_sync(kAll, to.number, 31)}};
  return team.of_block.crossing;
}

/// The largest threshold such that the weights from it up reach `wanted` (their sum if by_sum, else their
/// number). The weights from `floor` up must reach it.
template <class S>
__device__ Threshold find_threshold(const S& slice, BinOf<S>* table, TeamOf<S>& team, Exchange& exchange,
                                    std::uint32_t floor, bool by_sum, unsigned long long wanted) {
  constexpr int kTop = kMantissa - 5;  // 32 bins an octave
  constexpr std::uint32_t kUpper = 15;
  BinRange span{kUpper << kMantissa, kTop};
  Crossing crossing;
  for (;;) {
    const std::uint32_t first = max(floor, span.first());
    const std::uint32_t last = span.last(1u << kUpper);
    fill(slice, table, span, min(first, last), last);
    __syncthreads();
    crossing = find_crossing<S>(table, team, exchange, span, crossing.above, by_sum, wanted);
    exchange.wait();
    if (crossing.bin < 0) {
      span.low = 0;
      continue;
    }
    span.low += static_cast<std::uint32_t>(crossing.bin) << span.shift;
    if (crossing.number == 1 || crossing.rest == 0) {  // one weight, or all equal: the key is known
      span.low += static_cast<std::uint32_t>(crossing.rest);
      break;
    }
    span.shift -= kBinBits;
  }
  return {weight_of(static_cast<int>(span.low >> kMantissa), mantissa_of(span.low)), crossing.above};
}

/// Turns the slice's logits into weights and applies min_p, top_k and top_p.
template <class S>
__device__ KeptWeights filter(const S& slice, BinOf<S>* table, TeamOf<S>& team, Exchange& exchange,
                              float largest, int vocab) {
  const SampleRow& row = team.row;
  const double least = ceil(__dmul_rn(static_cast<double>(row.min_p), static_cast<double>(kFullWeight)));
  const std::uint32_t floor = least < 1 ? 1 : least > kFullWeight ? kFullWeight : __double2uint_rz(least);
  const float scale = fminf(__fdiv_rn(kLog2E, row.temperature), FLT_MAX);
  Tally all;
  slice.make_weights([&](float z) {
    const std::uint32_t weight = sampling_weight(z, largest, scale);
    if (weight >= floor) all = all + Tally{weight, 1};
    return weight;
  });
  using Tallies = PackedTally<S::kResident>;
  exchange.exchange(team.kept, block_sum(Tallies::pack(all), team.of_block.tallies));
  all = {};
  for (unsigned r = 0; r < team_size(); ++r) all = all + Tallies::unpack(team.kept[r]);

  KeptWeights kept{.threshold = floor, .sum = all.sum};
  Threshold threshold;  // weight 0: none yet
  if (row.top_k > 0 && row.top_k < vocab && all.number > static_cast<std::uint32_t>(row.top_k)) {
    const auto k = static_cast<std::uint32_t>(row.top_k);
    threshold = find_threshold(slice, table, team, exchange, floor, false, k);
    kept.threshold = threshold.weight;
    kept.at_threshold = k - threshold.above.number;
    kept.sum = threshold.above.sum + kept.at_threshold * kept.threshold;
    all = {kept.sum, k};
  }
  if (row.top_p < 1) {
    // Keep the smallest set, from the largest weight down, whose sum reaches top_p of the remaining sum.
    const double part = ceil(__dmul_rn(static_cast<double>(row.top_p), static_cast<double>(all.sum)));
    const unsigned long long wanted = max(1ull, static_cast<unsigned long long>(part));
    const bool higher = threshold.weight == 0 || threshold.above.sum >= wanted;
    if (higher) {
      // All weights below (sum - wanted) / number together are less than sum - wanted: the threshold is
      // above.
      const unsigned long long lowest =
          max(static_cast<unsigned long long>(kept.threshold), (all.sum - wanted) / max(all.number, 1u));
      threshold =
          find_threshold(slice, table, team, exchange, static_cast<std::uint32_t>(lowest), true, wanted);
      kept.threshold = threshold.weight;
      kept.at_threshold = ~0ull;
    }
    const unsigned long long needed = (wanted - threshold.above.sum + kept.threshold - 1) / kept.threshold;
    kept.at_threshold = min(kept.at_threshold, needed);
    kept.sum = threshold.above.sum + kept.at_threshold * kept.threshold;
  }
  return kept;
}

/// Draws the first kept token, in id order, whose cumulative weight exceeds bits / 2^32 of the kept sum. One
/// thread of the team calls f(token). Takes one round.
template <class S, class F>
__device__ void draw(const S& slice, TeamOf<S>& team, Exchange& exchange, const KeptWeights& kept,
                     std::uint32_t bits, F&& f) {
  const unsigned long long target = bits * (kept.sum >> 32) + (bits * (kept.sum & 0xffffffffull) >> 32);
  // Each thread has one contiguous piece of ids; an odd length avoids bank conflicts.
  const int piece = (slice.count + S::kThreads - 1) / S::kThreads | 1;
  const int begin = min(piece * static_cast<int>(threadIdx.x), slice.count);
  const int end = min(begin + piece, slice.count);
  const std::uint32_t* weights = slice.weights();
  Tally own;  // the sum of weights above the threshold, the number of weights at it
#pragma unroll 8
  for (int j = 0; j < piece; ++j) {
    const std::uint32_t weight = begin + j < end ? weights[begin + j] : 0;
    own.sum += weight > kept.threshold ? weight : 0;
    own.number += weight == kept.threshold;
  }
  using Tallies = PackedTally<S::kResident>;
  const auto up_to_here = block_scan(Tallies::pack(own), team.of_block.tallies);
  exchange.expect(static_cast<unsigned>(sizeof(up_to_here)) * team_size());
  if (threadIdx.x == S::kThreads - 1) {
    for (unsigned r = 0; r < team_size(); ++r) exchange.send(team.drawn + team_rank(), r, up_to_here);
  }
  exchange.wait();
  const Tally to = Tallies::unpack(up_to_here);
  Tally before;
  for (unsigned r = 0; r < team_rank(); ++r) before = before + Tallies::unpack(team.drawn[r]);
  const auto cumulative = [&](Tally t) {
    return t.sum + kept.threshold * min(kept.at_threshold, static_cast<unsigned long long>(t.number));
  };
  Tally from = before + Tally{to.sum - own.sum, to.number - own.number};
  const bool mine = cumulative(from) <= target && target < cumulative(before + to);
  const unsigned owners = __ballot_sync(kAll, mine);
  if (owners == 0) return;
  // The warp searches the owner's piece together.
  const int owner = __ffs(static_cast<int>(owners)) - 1;
  from.sum = __shfl_sync(kAll, from.sum, owner);
  from.number = __shfl_sync(kAll, from.number, owner);
  const int first = __shfl_sync(kAll, begin, owner), last = __shfl_sync(kAll, end, owner);
  for (int at = first; at < last; at += 32) {
    const int i = at + lane();
    const std::uint32_t weight = i < last ? weights[i] : 0;
    const Tally step{weight > kept.threshold ? weight : 0ull, weight == kept.threshold ? 1u : 0u};
    const Tally up_to = from + Tallies::unpack(warp_scan(Tallies::pack(step)));
    const unsigned past = __ballot_sync(kAll, cumulative(up_to) > target);
    if (past != 0) {
      if (lane() == __ffs(static_cast<int>(past)) - 1) f(slice.begin + i);
      return;
    }
    from.sum = __shfl_sync(kAll, up_to.sum, 31);
    from.number = __shfl_sync(kAll, up_to.number, 31);
  }
}

}  // namespace troupe::kernels::cuda
