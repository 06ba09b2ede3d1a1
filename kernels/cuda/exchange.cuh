#pragma once
// What the kernels of an exchange share (kernels/exchange.h): the inboxes' layout, waiting, ends.
//
// A block waits for nothing but what the block of its number sends on the other ranks, and sends it first. So
// an exchange ends even where a GPU has not room for all its blocks at once, as long as they start in the
// order of their numbers. In two steps a block sends the sums of a piece when it has all parts of it, and
// every block has sent its parts before it waits for the sums of an earlier piece.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/exchange.h"

namespace troupe::kernels::cuda {

inline constexpr std::size_t kPacketBytes = 2 * kMostInPackets * sizeof(float);
inline constexpr std::size_t kLeastPiece = 2048;  ///< floats

/// Flags that a rank may set in an exchange, one for each piece. In two steps the first half is for pieces of
/// parts, the second for those of sums.
__host__ __device__ constexpr std::size_t most_flags(int ranks) {
  return most_in_pieces(ranks) / kLeastPiece;
}
static_assert(most_flags(7) % 8 == 0 && most_flags(7) * kLeastPiece == most_in_pieces(7));

/// What a rank may write into the inbox of another in one exchange: packets, numbers in pieces, flags. In two
/// steps the first half of the numbers are parts, the second half sums.
__host__ __device__ constexpr std::size_t part_bytes(int ranks) {
  return kPacketBytes + most_in_pieces(ranks) * sizeof(float) + most_flags(ranks) * sizeof(std::uint32_t);
}

/// The inboxes as they are in one exchange, and as one rank reaches them.
class Inboxes {
 public:
  __device__ Inboxes(const ExchangeGroup& group, std::uint32_t number)
      : table_(group.table), half_(number & 1), ranks_(group.ranks) {}

  /// What `from` sends to `to`.
  __device__ uint4* packets(int from, int to) const { return reinterpret_cast<uint4*>(part(from, to)); }
  __device__ float* numbers(int from, int to) const {
    return reinterpret_cast<float*>(part(from, to) + kPacketBytes);
  }
  __device__ std::uint32_t* flags(int from, int to) const {
    return reinterpret_cast<std::uint32_t*>(numbers(from, to) + most_in_pieces(ranks_));
  }

 private:
  __device__ std::byte* part(int from, int to) const {
    const int place = (from - to + ranks_ - 1) % ranks_;  // nothing of `to` itself
    return table_->inboxes[to] +
           (static_cast<std::size_t>(half_) * (ranks_ - 1) + place) * part_bytes(ranks_);
  }

  const ExchangeTable* table_;
  std::uint32_t half_;
  int ranks_;
};

/// False: the rank takes its own numbers for all.
__device__ inline bool is_live(const ExchangeGroup& group) {
  return *static_cast<const volatile std::uint32_t*>(&group.table->live) != 0;
}
__device__ inline std::uint32_t number_of(const ExchangeGroup& group) {
  return *static_cast<const volatile std::uint32_t*>(&group.table->number);
}

/// Tells now and then whether to go on waiting.
struct Patience {
  static constexpr int kSpinsPerLook = 4096;
  const ExchangeGroup& group;
  int spins = 0;
  __device__ bool over() {
    if (++spins % kSpinsPerLook != 0) return false;
    if (*static_cast<const volatile std::uint32_t*>(group.stop) == 0) return false;
    *static_cast<volatile std::uint32_t*>(&group.table->live) = 0;
    return true;
  }
};

/// Packets that stand `apart` from each other; looked at together, so that a thread waits for memory once.
/// False: given up.
template <int kPackets>
__device__ bool wait_for_packets(const uint4* from, std::size_t apart, std::uint32_t number,
                                 const ExchangeGroup& group, uint4 (&v)[kPackets]) {
  Patience patience{group};
  for (;;) {
    bool come = true;
#pragma unroll
    for (int i = 0; i < kPackets; ++i) v[i] = ptx::load_volatile_16(from + i * apart);
#pragma unroll
    for (int i = 0; i < kPackets; ++i) come &= v[i].y == number && v[i].w == number;
    if (come) return true;
    if (patience.over()) return false;
  }
}

/// Sets a flag of `piece` on every other rank, after what the block has written before. All threads call it.
__device__ inline void tell(const Inboxes& inboxes, const ExchangeGroup& group, std::size_t piece,
                            std::uint32_t number) {
  __syncthreads();
  const int other = static_cast<int>(threadIdx.x);
  if (other < group.ranks && other != group.rank)
    ptx::store_release_system(inboxes.flags(group.rank, other) + piece, number);
}

/// Waits until every other rank has set its flag of `piece`. All threads call it. False for all of them:
/// given up.
__device__ inline bool wait_for_piece(const Inboxes& inboxes, const ExchangeGroup& group, std::size_t piece,
                                      std::uint32_t number) {
  bool come = true;
  const int other = static_cast<int>(threadIdx.x);
  if (other < group.ranks && other != group.rank) {
    const std::uint32_t* const flag = inboxes.flags(other, group.rank) + piece;
    Patience patience{group};
    while (come && ptx::load_acquire_system(flag) != number) come = !patience.over();
  }
  return __syncthreads_and(come) != 0;
}

/// True in the last block of the exchange to call it, by one thread.
__device__ inline bool is_last_to_end(ExchangeTable* table) {
  __threadfence();
  return atomicAdd(&table->blocks, 1u) + 1 == gridDim.x;
}

/// Zeros the packets and flags of one half of this rank's inbox. All threads of a block call it.
__device__ inline void clear_half(const ExchangeGroup& group, std::uint32_t number) {
  const auto zero = [](void* memory, std::size_t bytes) {
    auto* const words = static_cast<std::uint32_t*>(memory);
    for (std::size_t i = threadIdx.x; i < bytes / sizeof(std::uint32_t); i += blockDim.x) words[i] = 0;
  };
  const Inboxes inboxes(group, number);
  for (int from = 0; from < group.ranks; ++from) {
    if (from == group.rank) continue;
    zero(inboxes.packets(from, group.rank), kPacketBytes);
    zero(inboxes.flags(from, group.rank), most_flags(group.ranks) * sizeof(std::uint32_t));
  }
}

/// The last block to end makes the table ready for the next exchange. All threads call it.
__device__ inline void end_block(const ExchangeGroup& group, std::uint32_t number) {
  ExchangeTable* const table = group.table;
  __syncthreads();
  if (is_last_in_half(number)) {
    __shared__ bool last;
    if (threadIdx.x == 0) last = is_last_to_end(table);
    __syncthreads();
    if (last) clear_half(group, number);
    if (!last || threadIdx.x != 0) return;
  } else if (threadIdx.x != 0 || !is_last_to_end(table)) {
    return;
  }
  table->blocks = 0;
  table->number = exchange_after(number);
}

}  // namespace troupe::kernels::cuda
