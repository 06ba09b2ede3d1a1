#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/exchange.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/exchange.h"

namespace troupe::kernels {
namespace {

using cuda::Inboxes;

constexpr int kThreads = 512;
constexpr int kMostBlocks = 256;
// Packs of numbers that a thread has under way, and pieces that a block sends before it waits for the first.
constexpr int kPacksAtOnce = 4;
constexpr unsigned kPiecesAhead = 2;
static_assert(cuda::kLeastPiece == 4 * kThreads);

template <int kWide>
struct alignas(kWide * sizeof(float)) Pack {
  float at[kWide];
};

template <int kWide>
__device__ Pack<kWide>& pack(float* numbers, std::size_t i) {
  return reinterpret_cast<Pack<kWide>*>(numbers)[i];
}

template <int kWide>
__device__ Pack<kWide> load_arrived(const float* numbers, std::size_t i) {
  if constexpr (kWide == 4) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(numbers) + i);
    return {v.x, v.y, v.z, v.w};
  } else {
    static_assert(kWide == 1);
    return {__ldcg(numbers + i)};
  }
}

// What is exchanged, as one row of packs of numbers for each rank: the kernels below know nothing else of it.
struct Sum {
  static constexpr bool kAdds = true;
  float* in;
  float* out;
  unsigned total;
  template <int kWide>
  __device__ unsigned count(int) const {
    return total / kWide;
  }
  template <int kWide>
  __device__ Pack<kWide> own(unsigned i) const {
    return pack<kWide>(in, i);
  }
  template <int kWide>
  __device__ void take(int, unsigned i, const Pack<kWide>& values) const {
    pack<kWide>(out, i) = values;
    if (in != out) pack<kWide>(in, i) = {};
  }
};

struct Gather {
  static constexpr bool kAdds = false;
  GatherColumns op;
  template <int kWide>
  __device__ unsigned columns(int rank) const {
    return static_cast<unsigned>(op.first[rank + 1] - op.first[rank]) / kWide;
  }
  template <int kWide>
  __device__ unsigned count(int rank) const {
    return static_cast<unsigned>(op.rows) * columns<kWide>(rank);
  }
  template <int kWide>
  __device__ Pack<kWide> own(unsigned i) const {
    const unsigned width = columns<kWide>(op.group.rank);
    return reinterpret_cast<const Pack<kWide>*>(op.in + i / width * op.in_stride)[i % width];
  }
  template <int kWide>
  __device__ void take(int rank, unsigned i, const Pack<kWide>& values) const {
    const unsigned width = columns<kWide>(rank);
    pack<kWide>(op.out + i / width * op.out_stride + op.first[rank], i % width) = values;
  }
};

template <class What>
__device__ void take_own(const What& what, int rank) {
  const unsigned step = gridDim.x * kThreads, count = what.template count<1>(rank);
  for (unsigned i = blockIdx.x * kThreads + threadIdx.x; i < count; i += step) {
    what.template take<1>(rank, i, what.template own<1>(i));
  }
}

template <class What>
__global__ void __launch_bounds__(kThreads) packets_kernel(What what, ExchangeGroup group) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  if (!cuda::is_live(group)) return take_own(what, group.rank);
  const std::uint32_t number = cuda::number_of(group);
  const Inboxes inboxes(group, number);
  const unsigned first = blockIdx.x * kThreads + threadIdx.x;
  const unsigned step = gridDim.x * kThreads;

  const unsigned own = what.template count<1>(group.rank);
  const auto pair = [&](unsigned i) {
    const float a = what.template own<1>(2 * i).at[0];
    return make_float2(a, 2 * i + 1 < own ? what.template own<1>(2 * i + 1).at[0] : 0.0f);
  };
  const auto send = [&](unsigned i, float2 v) {
    for (int other = 1; other < group.ranks; ++other) {
      const int to = (group.rank + other) % group.ranks;
      ptx::store_volatile_16(inboxes.packets(group.rank, to) + i,
                             {__float_as_uint(v.x), number, __float_as_uint(v.y), number});
    }
  };
  const auto take = [&](int rank, unsigned i, unsigned count, float2 v) {
    what.template take<1>(rank, 2 * i, {v.x});
    if (2 * i + 1 < count) what.template take<1>(rank, 2 * i + 1, {v.y});
  };

  if constexpr (What::kAdds) {
    for (unsigned i = first; 2 * i < own; i += step) {
      const float2 mine = pair(i);
      send(i, mine);
      float2 sum{};
      for (int rank = 0; rank < group.ranks; ++rank) {
        float2 add = mine;
        if (rank != group.rank) {
          uint4 v[1];
          if (!cuda::wait_for_packets(inboxes.packets(rank, group.rank) + i, 0, number, group, v)) return;
          add = make_float2(__uint_as_float(v[0].x), __uint_as_float(v[0].z));
        }
        sum = rank == 0 ? add : make_float2(sum.x + add.x, sum.y + add.y);
      }
      take(0, i, own, sum);
    }
  } else {
    for (unsigned i = first; 2 * i < own; i += step) {
      const float2 mine = pair(i);
      send(i, mine);
      take(group.rank, i, own, mine);
    }
    for (int other = 1; other < group.ranks; ++other) {
      const int rank = (group.rank + other) % group.ranks;
      const unsigned count = what.template count<1>(rank);
      for (unsigned i = first; 2 * i < count; i += step) {
        uint4 v[1];
        if (!cuda::wait_for_packets(inboxes.packets(rank, group.rank) + i, 0, number, group, v)) return;
        take(rank, i, count, make_float2(__uint_as_float(v[0].x), __uint_as_float(v[0].z)));
      }
    }
  }
  cuda::end_block(group, number);
}

// `piece`: packs of one.
template <class What, int kWide>
__global__ void __launch_bounds__(kThreads) pieces_kernel(What what, ExchangeGroup group, unsigned piece) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  if (!cuda::is_live(group)) return take_own(what, group.rank);
  const std::uint32_t number = cuda::number_of(group);
  const Inboxes inboxes(group, number);
  unsigned most = 0;
  for (int rank = 0; rank < group.ranks; ++rank) most = max(most, what.template count<kWide>(rank));
  const unsigned pieces = (most + piece - 1) / piece;
  const auto end_of = [&](unsigned at, int rank) {
    return min((at + 1) * piece, what.template count<kWide>(rank));
  };

  const auto send = [&](unsigned at) {
    const unsigned end = end_of(at, group.rank);
    for (unsigned i = at * piece + threadIdx.x; i < end; i += kPacksAtOnce * kThreads) {
      Pack<kWide> own[kPacksAtOnce];
#pragma unroll
      for (unsigned k = 0; k < kPacksAtOnce; ++k) {
        if (i + k * kThreads < end) own[k] = what.template own<kWide>(i + k * kThreads);
      }
      for (int other = 1; other < group.ranks; ++other) {
        float* const to = inboxes.numbers(group.rank, (group.rank + other) % group.ranks);
#pragma unroll
        for (unsigned k = 0; k < kPacksAtOnce; ++k) {
          if (i + k * kThreads < end) pack<kWide>(to, i + k * kThreads) = own[k];
        }
      }
    }
    cuda::tell(inboxes, group, at, number);
  };

  const auto take_sum = [&](unsigned at) {
    const unsigned end = end_of(at, 0);
    for (unsigned i = at * piece + threadIdx.x; i < end; i += kPacksAtOnce * kThreads) {
      Pack<kWide> sum[kPacksAtOnce] = {};
      for (int rank = 0; rank < group.ranks; ++rank) {
        Pack<kWide> add[kPacksAtOnce] = {};
#pragma unroll
        for (unsigned k = 0; k < kPacksAtOnce; ++k) {
          if (i + k * kThreads >= end) continue;
          add[k] = rank == group.rank
                       ? what.template own<kWide>(i + k * kThreads)
                       : load_arrived<kWide>(inboxes.numbers(rank, group.rank), i + k * kThreads);
        }
#pragma unroll
        for (unsigned k = 0; k < kPacksAtOnce; ++k) {
#pragma unroll
          for (int n = 0; n < kWide; ++n)
            sum[k].at[n] = rank == 0 ? add[k].at[n] : sum[k].at[n] + add[k].at[n];
        }
      }
#pragma unroll
      for (unsigned k = 0; k < kPacksAtOnce; ++k) {
        if (i + k * kThreads < end) what.template take<kWide>(0, i + k * kThreads, sum[k]);
      }
    }
  };
  const auto take_parts = [&](unsigned at) {
    for (int rank = 0; rank < group.ranks; ++rank) {
      const float* const from = inboxes.numbers(rank, group.rank);
      const unsigned end = end_of(at, rank);
      for (unsigned i = at * piece + threadIdx.x; i < end; i += kPacksAtOnce * kThreads) {
        Pack<kWide> part[kPacksAtOnce];
#pragma unroll
        for (unsigned k = 0; k < kPacksAtOnce; ++k) {
          if (i + k * kThreads >= end) continue;
          part[k] = rank == group.rank ? what.template own<kWide>(i + k * kThreads)
                                       : load_arrived<kWide>(from, i + k * kThreads);
        }
#pragma unroll
        for (unsigned k = 0; k < kPacksAtOnce; ++k) {
          if (i + k * kThreads < end) what.template take<kWide>(rank, i + k * kThreads, part[k]);
        }
      }
    }
  };

  const unsigned mine = (pieces - blockIdx.x + gridDim.x - 1) / gridDim.x;  // no block is without one
  for (unsigned turn = 0; turn < mine + kPiecesAhead; ++turn) {
    if (turn < mine) send(blockIdx.x + turn * gridDim.x);
    if (turn < kPiecesAhead) continue;
    const unsigned at = blockIdx.x + (turn - kPiecesAhead) * gridDim.x;
    if (!cuda::wait_for_piece(inboxes, group, at, number)) return;
    if constexpr (What::kAdds)
      take_sum(at);
    else
      take_parts(at);
  }
  cuda::end_block(group, number);
}

// A sum in two steps. The numbers are cut into one run for each rank, `run` packs long but for what the end
// takes away. `piece`: packs of each run that a block has at a time, so many on all ranks and for all runs: a
// flag is set and waited for even where the end has left nothing of a piece.
template <int kWide>
__global__ void __launch_bounds__(kThreads, 2)
    two_steps_kernel(Sum what, ExchangeGroup group, unsigned run, unsigned piece) {
  // By rank, and none of this rank's own. In shared memory, as registers are for numbers.
  __shared__ float* to[kMostPeers];
  __shared__ const float* from[kMostPeers];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  if (!cuda::is_live(group)) return take_own(what, group.rank);
  const std::uint32_t number = cuda::number_of(group);
  const Inboxes inboxes(group, number);
  const unsigned rank = group.rank, ranks = group.ranks, total = what.count<kWide>(0);
  const std::size_t sums = most_added_by_one(group.ranks);          // where they begin in an inbox
  const std::size_t sum_flags = cuda::most_flags(group.ranks) / 2;  // likewise
  if (threadIdx.x < ranks && threadIdx.x != rank) {
    const int peer = static_cast<int>(threadIdx.x);
    to[peer] = inboxes.numbers(group.rank, peer);
    from[peer] = inboxes.numbers(peer, group.rank);
  }
  __syncthreads();
  // Calls body(peer) for every other rank. What is kept for each has to be in registers, so loops are
  // unrolled.
  const auto peers = [&](auto&& body) {
#pragma unroll
    for (unsigned peer = 0; peer < kMostPeers; ++peer) {
      if (peer < ranks && peer != rank) body(peer);
    }
  };
  // The same, where number i of the peer's run is there; place: among all numbers.
  const auto runs = [&](unsigned i, auto&& body) {
    peers([&](unsigned peer) {
      if (peer * run + i < total) body(peer, peer * run + i);
    });
  };
  const auto each = [&](unsigned at, auto&& body) {
    const unsigned end = min((at + 1) * piece, run);
    for (unsigned i = at * piece + threadIdx.x; i < end; i += kThreads) body(i);
  };

  const auto send_parts = [&](unsigned at) {
    each(at, [&](unsigned i) {
      Pack<kWide> part[kMostPeers];
      runs(i, [&](unsigned peer, unsigned place) { part[peer] = what.own<kWide>(place); });
      runs(i, [&](unsigned peer, unsigned) { pack<kWide>(to[peer], i) = part[peer]; });
    });
    cuda::tell(inboxes, group, at, number);
  };
  const auto add_up = [&](unsigned at) {
    each(at, [&](unsigned i) {
      const unsigned place = rank * run + i;
      if (place >= total) return;
      const Pack<kWide> own = what.own<kWide>(place);
      Pack<kWide> part[kMostPeers];
      peers([&](unsigned peer) { part[peer] = load_arrived<kWide>(from[peer], i); });
      Pack<kWide> sum{};
#pragma unroll
      for (unsigned r = 0; r < kMostPeers; ++r) {
        if (r >= ranks) continue;
        const Pack<kWide> add = r == rank ? own : part[r];
#pragma unroll
        for (int n = 0; n < kWide; ++n) sum.at[n] = r == 0 ? add.at[n] : sum.at[n] + add.at[n];
      }
      peers([&](unsigned peer) { pack<kWide>(to[peer] + sums, i) = sum; });
      what.take<kWide>(0, place, sum);
    });
    cuda::tell(inboxes, group, sum_flags + at, number);
  };
  const auto take_sums = [&](unsigned at) {
    each(at, [&](unsigned i) {
      Pack<kWide> sum[kMostPeers];
      runs(i, [&](unsigned peer, unsigned) { sum[peer] = load_arrived<kWide>(from[peer] + sums, i); });
      runs(i, [&](unsigned peer, unsigned place) { what.take<kWide>(0, place, sum[peer]); });
    });
  };

  const unsigned pieces = (run + piece - 1) / piece;
  const unsigned mine = (pieces - blockIdx.x + gridDim.x - 1) / gridDim.x;  // no block is without one
  for (unsigned turn = 0; turn < mine + 2 * kPiecesAhead; ++turn) {
    if (turn < mine) send_parts(blockIdx.x + turn * gridDim.x);
    if (turn >= kPiecesAhead && turn < mine + kPiecesAhead) {
      const unsigned at = blockIdx.x + (turn - kPiecesAhead) * gridDim.x;
      if (!cuda::wait_for_piece(inboxes, group, at, number)) return;
      add_up(at);
    }
    if (turn >= 2 * kPiecesAhead) {
      const unsigned at = blockIdx.x + (turn - 2 * kPiecesAhead) * gridDim.x;
      if (!cuda::wait_for_piece(inboxes, group, sum_flags + at, number)) return;
      take_sums(at);
    }
  }
  cuda::end_block(group, number);
}

// Packs of four can be read and written there.
bool is_wide(const float* numbers) {
  return reinterpret_cast<std::uintptr_t>(numbers) % (4 * sizeof(float)) == 0;
}

template <class What>
void exchange(Cuda& device, const ExchangeGroup& group, const What& what, std::size_t most, bool wide) {
  TROUPE_CHECK(group.ranks <= kMostPeers && most <= most_in_pieces(group.ranks));
  const auto blocks = [](std::size_t count, std::size_t each) {
    return static_cast<unsigned>(std::min<std::size_t>(kMostBlocks, (count + each - 1) / each));
  };
  if (most <= kMostInPackets) {
    const troupe::cuda::Shape shape{.grid = blocks(most, 2 * kThreads), .block = kThreads};
    troupe::cuda::launch(device, packets_kernel<What>, shape, what, group);
    return;
  }
  // Larger ones as soon as every block has one.
  const std::size_t times =
      std::clamp<std::size_t>(most / (kMostBlocks * cuda::kLeastPiece), 1, kPacksAtOnce);
  const std::size_t piece = times * cuda::kLeastPiece;
  const troupe::cuda::Shape shape{.grid = blocks(most, piece), .block = kThreads};
  if (wide)
    troupe::cuda::launch(device, pieces_kernel<What, 4>, shape, what, group,
                         static_cast<unsigned>(piece / 4));
  else
    troupe::cuda::launch(device, pieces_kernel<What, 1>, shape, what, group, static_cast<unsigned>(piece));
}

void sum_in_two_steps(Cuda& device, const ExchangeGroup& group, const Sum& what, bool wide) {
  TROUPE_CHECK(group.ranks > 1 && group.ranks <= kMostPeers);
  const auto ranks = static_cast<std::size_t>(group.ranks);
  const std::size_t packs = wide ? what.total / 4 : what.total, in_pack = wide ? 4 : 1;
  const std::size_t run = (packs + ranks - 1) / ranks;
  TROUPE_CHECK(run * in_pack <= most_added_by_one(group.ranks));
  // Two of the least pieces for each block before one is larger: while one is added up, the next is on its
  // way.
  const std::size_t times =
      std::clamp<std::size_t>(run * in_pack / (2 * kMostBlocks * cuda::kLeastPiece), 1, kPacksAtOnce);
  const std::size_t piece = times * cuda::kLeastPiece / in_pack;
  const troupe::cuda::Shape shape{
      .grid = static_cast<unsigned>(std::min<std::size_t>(kMostBlocks, (run + piece - 1) / piece)),
      .block = kThreads};
  const auto kernel = wide ? two_steps_kernel<4> : two_steps_kernel<1>;
  troupe::cuda::launch(device, kernel, shape, what, group, static_cast<unsigned>(run),
                       static_cast<unsigned>(piece));
}

}  // namespace

std::size_t exchange_inbox_bytes(int ranks) {
  return 2 * static_cast<std::size_t>(std::max(1, ranks - 1)) * cuda::part_bytes(ranks);
}

void run(Cuda& device, const SumOverRanks& op) {
  const bool two_steps = op.count >= op.group.two_steps_from && op.group.ranks > 1;
  const std::size_t most = two_steps
                               ? static_cast<std::size_t>(op.group.ranks) * most_added_by_one(op.group.ranks)
                               : most_in_pieces(op.group.ranks);
  for (std::size_t at = 0; at < op.count; at += most) {
    const std::size_t count = std::min(most, op.count - at);
    const bool wide = count % 4 == 0 && is_wide(op.in) && is_wide(op.out);
    const Sum part{op.in + at, op.out + at, static_cast<unsigned>(count)};
    if (two_steps)
      sum_in_two_steps(device, op.group, part, wide);
    else
      exchange(device, op.group, part, count, wide);
  }
}

void run(Cuda& device, const GatherColumns& op) {
  int widest = 0;
  bool wide = is_wide(op.in) && is_wide(op.out) && op.in_stride % 4 == 0 && op.out_stride % 4 == 0;
  for (int rank = 0; rank < op.group.ranks; ++rank) {
    widest = std::max(widest, op.first[rank + 1] - op.first[rank]);
    wide = wide && op.first[rank] % 4 == 0 && op.first[rank + 1] % 4 == 0;
  }
  const std::size_t most = most_in_pieces(op.group.ranks);
  TROUPE_CHECK(widest > 0 && static_cast<std::size_t>(widest) <= most);
  const auto at_once = static_cast<int>(most / static_cast<std::size_t>(widest));
  for (int row = 0; row < op.rows; row += at_once) {
    Gather part{op};
    part.op.in += static_cast<std::size_t>(row) * op.in_stride;
    part.op.out += static_cast<std::size_t>(row) * op.out_stride;
    part.op.rows = std::min(at_once, op.rows - row);
    exchange(device, op.group, part,
             static_cast<std::size_t>(part.op.rows) * static_cast<std::size_t>(widest), wide);
  }
}

}  // namespace troupe::kernels
