#pragma once
// Weights, min_p, top_k, top_p and the draw over a row whose slices lie in the memories of a team.
//
// A filter's border is found without sorting. A weight, being made of a float, is a whole number of at most
// 24 significant bits, so the float nearest to it is it, and the float's bits (5 of the exponent, 23 of the
// mantissa) order as the weights do. Going down these 28 bits in tables of 512 bins, three passes over the
// weights find the border to the bit: first 16 octaves of 32 bins (and the 15 octaves below only if the
// border is not there), then 512 bins of the bin that holds it, then single weights; or fewer, where a bin
// holds but one weight. A bin counts its weights and sums what they are above the bin's start, in units of
// 2^(octave - 23), so that sums stay small.
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

/// Elements of a slice for which the sums of 32-bit tables cannot overflow (each adds less than 2^18) and a
/// row's tallies fit a Parcel.
inline constexpr int kMaxResident = (1 << 14) - 4;

template <bool Resident>
struct alignas(Resident ? 8 : 16) Bin {
  using Word = std::conditional_t<Resident, std::uint32_t, unsigned long long>;
  Word count;
  Word rest;
};

/// sampling_weight.h, to the bit.
__device__ __forceinline__ std::uint32_t sampling_weight(float z, float largest, float scale) {
  constexpr float c1 = kPowerOfTwo[0], c2 = kPowerOfTwo[1], c3 = kPowerOfTwo[2], c4 = kPowerOfTwo[3],
                  c5 = kPowerOfTwo[4], c6 = kPowerOfTwo[5];
  constexpr float kMagic = 0x1.8p23f;  // adding it leaves the nearest whole number in the low bits
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

/// The place of a weight > 0 among floats from 1 up: octave << 23 | mantissa.
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

/// The tokens that stay: weights > border, and of those equal to it the first `at_border`. Their sum.
struct KeptWeights {
  std::uint32_t border = 1;
  unsigned long long at_border = ~0ull;
  unsigned long long sum = 0;
};

/// The border, and the tally of the weights above it.
struct Border {
  std::uint32_t weight = 0;
  Tally above{};
};

/// One table of the descent: 512 bins of 2^shift keys from key `low` up.
struct BinRange {
  std::uint32_t low = 0;
  int shift = 0;

  /// Weights [first, last) are those whose keys it holds.
  __device__ std::uint32_t first() const {
    return low == 0 ? 1 : weight_of(static_cast<int>(low >> kMantissa), mantissa_of(low));
  }
  __device__ std::uint32_t last(std::uint32_t upper) const {
    if (shift == kMantissa - 5) return low == 0 ? upper : 1u << 31;
    return weight_of(static_cast<int>(low >> kMantissa), mantissa_of(low) + (kBins << shift));
  }
  /// The sum of a bin's weights.
  __device__ unsigned long long sum(int bin, unsigned long long count, unsigned long long rest) const {
    const std::uint32_t key = low + (static_cast<std::uint32_t>(bin) << shift);
    const int octave = static_cast<int>(key >> kMantissa);
    const unsigned long long all = count * mantissa_of(key) + rest;
    return octave >= kMantissa ? all << (octave - kMantissa) : all >> (kMantissa - octave);
  }
};

template <class S>
using BinOf = Bin<S::kResident>;

/// Puts the slice's weights from `first` to before `last` into their bins.
template <class S>
__device__ void fill(const S& slice, BinOf<S>* table, BinRange span, std::uint32_t first, std::uint32_t last) {
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

/// What is in one bin of all the team's tables.
struct BinContent {
  std::uint32_t number = 0;
  unsigned long long rest = 0;
};

/// A table has 16 groups of 32 bins; lane i gets a group's i-th from the top.
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

/// Where the tally from the top down reaches `wanted` (a number or a sum), given the tally `above` the table.
/// bin -1, above: all of the table, when it does not. This block's table is complete and its threads know.
/// Each block tells everyone what is in its groups of bins; only the group that matters is looked into, in
/// everyone's table. One turn, and the beginning of another: when that has been awaited, a table may be
/// written to again.
template <class S>
__device__ Crossing cross(const BinOf<S>* table, TeamOf<S>& team, Mail& mail, BinRange span, Tally above,
                          bool by_sum, unsigned long long wanted) {
  using Tallies = Parcel<S::kResident>;
  mail.expect(static_cast<unsigned>(sizeof(team.groups[0])) * team_size());
  for (int group = warp(); group < kGroups; group += S::kThreads / 32) {
    const BinOf<S> bin = table[bin_of(group)];
    const auto all = warp_sum(
        Tallies::pack({span.sum(bin_of(group), bin.count, bin.rest), static_cast<std::uint32_t>(bin.count)}));
    if (lane() < static_cast<int>(team_size())) {
      mail.send(&team.groups[team_rank()][group], static_cast<unsigned>(lane()), all);
    }
  }
  mail.await();
  const auto reached = [&](Tally t) { return (by_sum ? t.sum : t.number) >= wanted; };
  typename Tallies::Type own{};
  if (lane() < kGroups) {
    for (unsigned r = 0; r < team_size(); ++r) own = own + team.groups[r][kGroups - 1 - lane()];
  }
  Tally to = above + Tallies::open(warp_scan(own));
  const unsigned there = __ballot_sync(kAll, reached(to));
  if (there != 0 && warp() == 0) {
    const int at = __ffs(static_cast<int>(there)) - 1;
    const int group = kGroups - 1 - at;
    const Tally in_group = Tallies::open(own);
    const Tally before{__shfl_sync(kAll, to.sum - in_group.sum, at),
                       __shfl_sync(kAll, to.number - in_group.number, at)};
    const BinContent content = content_of(table, group);
    const Tally bin{span.sum(bin_of(group), content.number, content.rest), content.number};
    to = before + Tallies::open(warp_scan(Tallies::pack(bin)));
    const unsigned reach = __ballot_sync(kAll, reached(to));
    if (lane() == __ffs(static_cast<int>(reach)) - 1) {
      team.of_block.crossing = {
          bin_of(group), content.number, content.rest, {to.sum - bin.sum, to.number - bin.number}};
    }
  }
  __syncthreads();  // all have read the groups, the first warp the tables
  mail.expect(static_cast<unsigned>(sizeof(team.signal)) * team_size());
  if (threadIdx.x < team_size()) mail.send(&team.signal, threadIdx.x, 0ull);
  if (there == 0)
    return {.bin = -1, .above = {__shfl_sync(kAll, to.sum, 31), __shfl_sync(kAll, to.number, 31)}};
  return team.of_block.crossing;
}

/// The largest weight from which up there are `wanted` weights, or weights that sum up to it. From `floor`
/// up there are.
template <class S>
__device__ Border descend(const S& slice, BinOf<S>* table, TeamOf<S>& team, Mail& mail, std::uint32_t floor,
                          bool by_sum, unsigned long long wanted) {
  constexpr int kTop = kMantissa - 5;  // 32 bins an octave
  constexpr std::uint32_t kUpper = 15;
  BinRange span{kUpper << kMantissa, kTop};
  Crossing crossing;
  for (;;) {
    const std::uint32_t first = max(floor, span.first());
    const std::uint32_t last = span.last(1u << kUpper);
    fill(slice, table, span, min(first, last), last);
    __syncthreads();
    crossing = cross<S>(table, team, mail, span, crossing.above, by_sum, wanted);
    mail.await();
    if (crossing.bin < 0) {
      span.low = 0;
      continue;
    }
    span.low += static_cast<std::uint32_t>(crossing.bin) << span.shift;
    if (crossing.number == 1 || crossing.rest == 0) {  // a single weight, or equal ones: its key is known
      span.low += static_cast<std::uint32_t>(crossing.rest);
      break;
    }
    span.shift -= kBinBits;
  }
  return {weight_of(static_cast<int>(span.low >> kMantissa), mantissa_of(span.low)), crossing.above};
}

/// Makes weights of the slice's logits and finds which stay.
template <class S>
__device__ KeptWeights filter(const S& slice, BinOf<S>* table, TeamOf<S>& team, Mail& mail, float largest,
                              int vocab) {
  const SampleRow& row = team.row;
  const double least = ceil(__dmul_rn(static_cast<double>(row.min_p), static_cast<double>(kFullWeight)));
  const std::uint32_t floor = least < 1 ? 1 : least > kFullWeight ? kFullWeight : __double2uint_rz(least);
  const float scale = fminf(__fdiv_rn(kLog2E, row.temperature), FLT_MAX);
  Tally all;
  slice.weigh([&](float z) {
    const std::uint32_t weight = sampling_weight(z, largest, scale);
    if (weight >= floor) all = all + Tally{weight, 1};
    return weight;
  });
  using Tallies = Parcel<S::kResident>;
  mail.exchange(team.kept, block_sum(Tallies::pack(all), team.of_block.tallies));
  all = {};
  for (unsigned r = 0; r < team_size(); ++r) all = all + Tallies::open(team.kept[r]);

  KeptWeights kept{.border = floor, .sum = all.sum};
  Border border;  // none yet
  if (row.top_k > 0 && row.top_k < vocab && all.number > static_cast<std::uint32_t>(row.top_k)) {
    const auto k = static_cast<std::uint32_t>(row.top_k);
    border = descend(slice, table, team, mail, floor, false, k);
    kept.border = border.weight;
    kept.at_border = k - border.above.number;
    kept.sum = border.above.sum + kept.at_border * kept.border;
    all = {kept.sum, k};
  }
  if (row.top_p < 1) {
    // The smallest set, from the largest weight down, that reaches top_p of what is left.
    const double part = ceil(__dmul_rn(static_cast<double>(row.top_p), static_cast<double>(all.sum)));
    const unsigned long long wanted = max(1ull, static_cast<unsigned long long>(part));
    const bool higher = border.weight == 0 || border.above.sum >= wanted;
    if (higher) {
      // Weights below (sum - wanted) / number cannot add up to what may go, so the border is not below.
      const unsigned long long lowest =
          max(static_cast<unsigned long long>(kept.border), (all.sum - wanted) / max(all.number, 1u));
      border = descend(slice, table, team, mail, static_cast<std::uint32_t>(lowest), true, wanted);
      kept.border = border.weight;
      kept.at_border = ~0ull;
    }
    const unsigned long long needed = (wanted - border.above.sum + kept.border - 1) / kept.border;
    kept.at_border = min(kept.at_border, needed);
    kept.sum = border.above.sum + kept.at_border * kept.border;
  }
  return kept;
}

/// The first kept token whose cumulative weight exceeds bits / 2^32 of the kept sum, told to one thread of
/// the team: f(token) is called there. One turn.
template <class S, class F>
__device__ void draw(const S& slice, TeamOf<S>& team, Mail& mail, const KeptWeights& kept, std::uint32_t bits,
                     F&& f) {
  const unsigned long long target = bits * (kept.sum >> 32) + (bits * (kept.sum & 0xffffffffull) >> 32);
  // In id order each thread has one piece; an odd number of words keeps threads off each other's banks.
  const int piece = (slice.count + S::kThreads - 1) / S::kThreads | 1;
  const int begin = min(piece * static_cast<int>(threadIdx.x), slice.count);
  const int end = min(begin + piece, slice.count);
  const std::uint32_t* weights = slice.weights();
  Tally own;  // the sum above the border, the number at it
#pragma unroll 8
  for (int j = 0; j < piece; ++j) {
    const std::uint32_t weight = begin + j < end ? weights[begin + j] : 0;
    own.sum += weight > kept.border ? weight : 0;
    own.number += weight == kept.border;
  }
  using Tallies = Parcel<S::kResident>;
  const auto up_to_here = block_scan(Tallies::pack(own), team.of_block.tallies);
  mail.expect(static_cast<unsigned>(sizeof(up_to_here)) * team_size());
  if (threadIdx.x == S::kThreads - 1) {
    for (unsigned r = 0; r < team_size(); ++r) mail.send(team.drawn + team_rank(), r, up_to_here);
  }
  mail.await();
  const Tally to = Tallies::open(up_to_here);
  Tally before;
  for (unsigned r = 0; r < team_rank(); ++r) before = before + Tallies::open(team.drawn[r]);
  const auto cumulative = [&](Tally t) {
    return t.sum + kept.border * min(kept.at_border, static_cast<unsigned long long>(t.number));
  };
  Tally from = before + Tally{to.sum - own.sum, to.number - own.number};
  const bool mine = cumulative(from) <= target && target < cumulative(before + to);
  const unsigned owners = __ballot_sync(kAll, mine);
  if (owners == 0) return;
  // This warp walks the owner's piece together.
  const int owner = __ffs(static_cast<int>(owners)) - 1;
  from.sum = __shfl_sync(kAll, from.sum, owner);
  from.number = __shfl_sync(kAll, from.number, owner);
  const int first = __shfl_sync(kAll, begin, owner), last = __shfl_sync(kAll, end, owner);
  for (int at = first; at < last; at += 32) {
    const int i = at + lane();
    const std::uint32_t weight = i < last ? weights[i] : 0;
    const Tally step{weight > kept.border ? weight : 0ull, weight == kept.border ? 1u : 0u};
    const Tally up_to = from + Tallies::open(warp_scan(Tallies::pack(step)));
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
