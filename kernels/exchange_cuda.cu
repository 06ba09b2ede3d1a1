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

}  // namespace

std::size_t exchange_inbox_bytes(int ranks) {
  return 2 * static_cast<std::size_t>(std::max(1, ranks - 1)) * cuda::part_bytes(ranks);
}

void run(Cuda& device, const SumOverRanks& op) {
  const std::size_t most = most_in_pieces(op.group.ranks);
  for (std::size_t at = 0; at < op.count; at += most) {
    const std::size_t count = std::min(most, op.count - at);
    const bool wide = count % 4 == 0 && is_wide(op.in) && is_wide(op.out);
    exchange(device, op.group, Sum{op.in + at, op.out + at, static_cast<unsigned>(count)}, count, wide);
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
