#pragma once
// Sums and collections over GPUs that reach each other's memory, one kernel each, for graphs too.
//
// Ranks write into each other's inboxes and wait for what comes into their own. Three ways, chosen by the
// size, which all ranks know. A rank of R sends for a sum of n numbers:
//   packets: 8 n (R - 1) bytes in one step. Every rank gives all numbers to all others and adds up itself.
//     Of 8 bytes 4 are the number of the exchange: who reads one knows whether it has come, and no flag or
//     fence follows.
//   pieces: 4 n (R - 1) bytes in one step. The same with plain numbers, then a flag for each piece of them.
//   two steps: 8 n (R - 1) / R bytes, a reduce-scatter and an all-gather. Each rank adds up 1/R of the
//     numbers, which the others give to it, and gives the sum to all. Two ranks gain nothing by it.
// A sum is taken in fp32 in the order of the ranks: ((x0 + x1) + x2) + …, by all ranks or by the one to which
// a number belongs, which the others copy. So all ranks have the same bits, whatever came first, whichever
// way it took, and whatever else is in the batch.
//
// An inbox has two halves that exchanges use in turn. A rank may write a half again, because it has finished
// the exchange before, for which every other rank must have finished the one before that.
//
// Numbers are 32 bits and come again after some weeks. What a half holds from an exchange long ago must not
// pass for a new one: after its last exchange of a round each rank clears its half, which no other rank
// writes until this rank has sent its part of the next exchange.
#include <cstddef>
#include <cstdint>

#include "gpu/device.h"
#include "kernels/add_rms_norm.h"

namespace troupe::kernels {

inline constexpr int kMostPeers = 8;
inline constexpr std::size_t kMostInPackets = std::size_t{160} << 10;  ///< floats of an exchange by packets
/// Floats that a rank gives to an exchange by pieces; more are several exchanges. More than two ranks have
/// room for 8 Mi numbers in two steps: half of it is for parts, half for sums.
constexpr std::size_t most_in_pieces(int ranks) {
  constexpr std::size_t kOfTwo = std::size_t{48} << 20, kOfMore = std::size_t{16} << 20, kWhole = 16384;
  return (ranks <= 2 ? kOfTwo : kOfMore) / static_cast<std::size_t>(ranks) / kWhole * kWhole;
}
/// Floats that one rank adds up in an exchange in two steps.
constexpr std::size_t most_added_by_one(int ranks) { return most_in_pieces(ranks) / 2; }

/// As ExchangeGroup::two_steps_from: always in one step.
inline constexpr std::size_t kNeverInTwoSteps = static_cast<std::size_t>(-1);
/// What is expected of GPUs on NVLink, where nothing has been measured: the second step costs what 64 Ki
/// numbers do between eight ranks.
constexpr std::size_t expected_two_steps_from(int ranks) {
  return ranks <= 2 ? kNeverInTwoSteps : (std::size_t{512} << 10) / static_cast<std::size_t>(ranks);
}

/// Numbers of exchanges. 0 is what a cleared inbox holds. They are even in number, so that halves take turns
/// at the end of a round too.
inline constexpr std::uint32_t kFirstExchange = 2, kLastExchange = 0xffffffff;
constexpr std::uint32_t exchange_after(std::uint32_t number) {
  return number == kLastExchange ? kFirstExchange : number + 1;
}
/// True if the exchange is the last of a round in its half of the inboxes.
constexpr bool is_last_in_half(std::uint32_t number) { return number >= kLastExchange - 1; }

/// What the kernels of one rank know of the others; in its device memory. Set before an epoch's first
/// exchange.
struct ExchangeTable {
  std::byte* inboxes[kMostPeers];  ///< of all ranks, exchange_inbox_bytes() each, as this rank reaches them
  std::uint32_t number;            ///< of the next exchange, from kFirstExchange
  std::uint32_t blocks;            ///< of the exchange that runs which have ended
  std::uint32_t live;              ///< 0: exchanges take the rank's own numbers for all
  std::uint32_t pad;
};

/// Of one rank. It must be zero before an epoch's first exchange.
std::size_t exchange_inbox_bytes(int ranks);

struct ExchangeGroup {
  ExchangeTable* table = nullptr;
  /// Pinned host memory; not 0: an exchange that waits gives up and sets `live` to 0.
  const std::uint32_t* stop = nullptr;
  int rank = 0;
  int ranks = 1;  ///< at most kMostPeers
  /// A sum of so many numbers or more goes in two steps; the same on all ranks.
  std::size_t two_steps_from = kNeverInTwoSteps;
};

/// out[i] = in[i] of rank 0 + in[i] of rank 1 + …. If `in` is not `out`, it is zero afterwards.
struct SumOverRanks {
  ExchangeGroup group{};
  float* in = nullptr;
  float* out = nullptr;
  std::size_t count = 0;
};

/// The same for the rows of a residual stream, norm.residual, and then `norm`, in one kernel and to the bit
/// of two. Without add, pick and codes.
struct SumThenNorm {
  ExchangeGroup group{};
  float* in = nullptr;  ///< (norm.rows, padded(norm.cols)); as SumOverRanks::in
  AddRmsNorm norm{};
};
/// What one kernel can do: rows of at most 8,192 columns.
bool is_supported(const SumThenNorm& op);

/// Rank r has the columns [first[r], first[r + 1]) of each row and writes them to all ranks' `out`.
struct GatherColumns {
  ExchangeGroup group{};
  const float* in = nullptr;
  std::size_t in_stride = 0;  ///< floats from row to row
  float* out = nullptr;
  std::size_t out_stride = 0;
  int rows = 0;
  int first[kMostPeers + 1] = {};
};

void run(Cuda& device, const SumOverRanks& op);
void run(Cuda& device, const SumThenNorm& op);
void run(Cuda& device, const GatherColumns& op);

}  // namespace troupe::kernels
