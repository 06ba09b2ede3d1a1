#pragma once
// Sums and collections over GPUs that reach each other's memory, one kernel each, for graphs too.
//
// Every rank writes what it has into the inboxes of all others and then waits for theirs. Two ways, chosen by
// the size, which all ranks know:
//   packets  8 bytes of which 4 are the number of the exchange: who reads one knows whether it has come, and
//            no flag or fence follows. Twice the bytes, one way over the link.
//   pieces   plain numbers, then a flag for each piece of them.
// A sum is taken in the order of the ranks, so all ranks get the same bits, whatever came first.
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
/// Floats that a rank gives to an exchange by pieces; more are several exchanges.
constexpr std::size_t most_in_pieces(int ranks) {
  constexpr std::size_t kOfAll = std::size_t{48} << 20, kWhole = 2048;
  return kOfAll / static_cast<std::size_t>(ranks) / kWhole * kWhole;
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
