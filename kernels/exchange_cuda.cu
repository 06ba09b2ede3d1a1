#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/exchange.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kMostBlocks = 128;  // blocks of an exchange wait; the GPU must have room for all of them
constexpr int kSpinsPerLook = 4096;
// Packs of numbers that a thread sends before it looks for those of the others, and so many behind them.
constexpr int kPacksAtOnce = 4;
constexpr unsigned kPiecesAhead = 2;
constexpr std::size_t kLeastPiece = 4 * kThreads;  // floats

constexpr std::size_t kPacketBytes = 2 * kMostInPackets * sizeof(float);

constexpr std::size_t flags_of(int ranks) {
  return (most_in_pieces(ranks) / kLeastPiece + 3) / 4 * 4;  // 16 bytes, as all of it
}

// What a rank may write into the inbox of another at once: packets, numbers in pieces, and their flags.
constexpr std::size_t source_bytes(int ranks) {
  return kPacketBytes + most_in_pieces(ranks) * sizeof(float) + flags_of(ranks) * sizeof(std::uint32_t);
}

// The part of an inbox that `source` writes in the exchange `number`.
__device__ std::byte* part_of(std::byte* inbox, std::uint32_t number, int source, int ranks) {
  return inbox + (static_cast<std::size_t>(number & 1) * ranks + source) * source_bytes(ranks);
}

// Tells now and then whether to go on waiting.
struct Patience {
  const ExchangeGroup& group;
  int spins = 0;
  __device__ bool over() {
    if (++spins % kSpinsPerLook != 0) return false;
    if (*static_cast<const volatile std::uint32_t*>(group.stop) == 0) return false;
    *static_cast<volatile std::uint32_t*>(&group.table->live) = 0;
    return true;
  }
};

// The last block to end makes the table ready for the next exchange.
__device__ void end_block(ExchangeTable* table, std::uint32_t number) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&table->blocks, 1u) + 1 != gridDim.x) return;
  table->blocks = 0;
  table->number = number + 1;
}

template <int kWide>
struct alignas(kWide * sizeof(float)) Pack {
  float at[kWide];
};

template <int kWide>
__device__ Pack<kWide>& pack(float* numbers, std::size_t i) {
  return reinterpret_cast<Pack<kWide>*>(numbers)[i];
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
    return pack<kWide>(const_cast<float*>(op.in) + i / width * op.in_stride, i % width);
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

// Packets that stand behind one another; looked at together, so that a thread waits for memory once. False:
// given up.
template <int kPackets>
__device__ bool wait_for_packets(const uint4* from, std::uint32_t number, const ExchangeGroup& group,
                                 uint4 (&v)[kPackets]) {
  Patience patience{group};
  for (;;) {
    bool come = true;
#pragma unroll
    for (int i = 0; i < kPackets; ++i) v[i] = ptx::load_volatile_16(from + i);
#pragma unroll
    for (int i = 0; i < kPackets; ++i) come &= v[i].y == number && v[i].w == number;
    if (come) return true;
    if (patience.over()) return false;
  }
}

template <class What>
__global__ void __launch_bounds__(kThreads) packets_kernel(What what, ExchangeGroup group) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  ExchangeTable* const table = group.table;
  if (*static_cast<volatile std::uint32_t*>(&table->live) == 0) return take_own(what, group.rank);
  const std::uint32_t number = *static_cast<volatile std::uint32_t*>(&table->number);
  const unsigned first = blockIdx.x * kThreads + threadIdx.x;
  const unsigned step = gridDim.x * kThreads;
  const auto number_at = [&](unsigned i) { return what.template own<1>(i).at[0]; };

  const unsigned own = what.template count<1>(group.rank);
  for (unsigned i = first; 2 * i < own; i += step) {
    const uint4 v{__float_as_uint(number_at(2 * i)), number,
                  2 * i + 1 < own ? __float_as_uint(number_at(2 * i + 1)) : 0, number};
    for (int other = 1; other < group.ranks; ++other) {
      const int to = (group.rank + other) % group.ranks;
      ptx::store_volatile_16(
          reinterpret_cast<uint4*>(part_of(table->inboxes[to], number, group.rank, group.ranks)) + i, v);
    }
  }

  std::byte* const inbox = table->inboxes[group.rank];
  if constexpr (What::kAdds) {
    for (unsigned i = first; 2 * i < own; i += step) {
      const bool two = 2 * i + 1 < own;
      float sum[2] = {};
      for (int rank = 0; rank < group.ranks; ++rank) {
        float add[2];
        if (rank == group.rank) {
          add[0] = number_at(2 * i);
          add[1] = two ? number_at(2 * i + 1) : 0.0f;
        } else {
          uint4 v[1];
          const auto* from = reinterpret_cast<const uint4*>(part_of(inbox, number, rank, group.ranks)) + i;
          if (!wait_for_packets(from, number, group, v)) return;
          add[0] = __uint_as_float(v[0].x);
          add[1] = __uint_as_float(v[0].z);
        }
        sum[0] = rank == 0 ? add[0] : sum[0] + add[0];
        sum[1] = rank == 0 ? add[1] : sum[1] + add[1];
      }
      what.template take<1>(0, 2 * i, {sum[0]});
      if (two) what.template take<1>(0, 2 * i + 1, {sum[1]});
    }
  } else {
    take_own(what, group.rank);
    for (int other = 1; other < group.ranks; ++other) {
      const int rank = (group.rank + other) % group.ranks;
      const auto* from = reinterpret_cast<const uint4*>(part_of(inbox, number, rank, group.ranks));
      const unsigned count = what.template count<1>(rank);
      for (unsigned i = first; 2 * i < count; i += step) {
        uint4 v[1];
        if (!wait_for_packets(from + i, number, group, v)) return;
        what.template take<1>(rank, 2 * i, {__uint_as_float(v[0].x)});
        if (2 * i + 1 < count) what.template take<1>(rank, 2 * i + 1, {__uint_as_float(v[0].z)});
      }
    }
  }
  end_block(table, number);
}

// A cluster for a row, whose packets stand where packets_kernel has them; a thread has four columns. The
// blocks tell each other the squares, so that each gets their sum in norm_kernel's order.
constexpr int kMostInCluster = 8;
constexpr int kMostNormed = kMostInCluster * cuda::kNormTogether;
constexpr int kMostNormBlocks = 2 * kMostBlocks;  // as many threads

struct SumNormArgs {
  float* in;
  float* residual;
  const float* weight;
  void* out;
  int cols, stride;
  int blocks;  // of a cluster
  float eps;
};

template <class Element>
__global__ void __launch_bounds__(cuda::kNormThreads) sum_norm_kernel(SumNormArgs a, ExchangeGroup group) {
  __shared__ float squares[kMostInCluster][cuda::kNormThreads];
  ptx::cluster_arrive();
  const int block = static_cast<int>(blockIdx.x) % a.blocks;
  const int column = block * cuda::kNormTogether + static_cast<int>(threadIdx.x) * 4;
  const bool mine = column < a.stride;
  const std::size_t at = static_cast<std::size_t>(blockIdx.x) / a.blocks * a.stride + column;
  float4 weight{};
  if (mine) weight = cuda::load_four(a.weight + column);  // constant while the step runs
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  ExchangeTable* const table = group.table;
  const bool live = *static_cast<volatile std::uint32_t*>(&table->live) != 0;
  const std::uint32_t number = *static_cast<volatile std::uint32_t*>(&table->number);
  const auto packets = [&](int to, int from) {
    return reinterpret_cast<uint4*>(part_of(table->inboxes[to], number, from, group.ranks)) + at / 2;
  };

  float4 h{};
  if (mine) h = cuda::load_four(a.in + at);
  if (mine && live) {
    const float4 own = h;
    for (int other = 1; other < group.ranks; ++other) {
      uint4* const to = packets((group.rank + other) % group.ranks, group.rank);
      ptx::store_volatile_16(to, {__float_as_uint(own.x), number, __float_as_uint(own.y), number});
      ptx::store_volatile_16(to + 1, {__float_as_uint(own.z), number, __float_as_uint(own.w), number});
    }
    for (int rank = 0; rank < group.ranks; ++rank) {
      float4 add = own;
      if (rank != group.rank) {
        uint4 come[2];
        if (!wait_for_packets(packets(group.rank, rank), number, group, come)) break;
        add = make_float4(__uint_as_float(come[0].x), __uint_as_float(come[0].z), __uint_as_float(come[1].x),
                          __uint_as_float(come[1].z));
      }
      h = rank == 0 ? add : make_float4(h.x + add.x, h.y + add.y, h.z + add.z, h.w + add.w);
    }
  }

  const float square = mine ? cuda::squares_of(h) : 0.0f;
  ptx::warp_cluster_wait();  // all blocks of the cluster have started
  for (int other = 0; other < a.blocks; ++other) {
    ptx::store_peer(ptx::peer_address(&squares[block][threadIdx.x], static_cast<unsigned>(other)), square);
  }
  ptx::cluster_arrive();
  if (mine) {
    *reinterpret_cast<float4*>(a.residual + at) = h;
    if (a.in != a.residual) *reinterpret_cast<float4*>(a.in + at) = float4{};
  }
  ptx::cluster_wait();
  float sum = 0;
  for (int other = 0; other < a.blocks; ++other) sum += squares[other][threadIdx.x];
  const float factor = cuda::norm_factor(sum, a.cols, a.eps);
  if (mine) {
    const float4 y = cuda::normed<Element>(h, factor, weight);
    cuda::store_four(static_cast<Element*>(a.out) + at, y.x, y.y, y.z, y.w);
  }
  end_block(table, number);
}

template <int kWide>
__device__ Pack<kWide> load_arrived(const float* numbers, std::size_t i) {
  Pack<kWide> values;
  if constexpr (kWide == 4) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(numbers) + i);
    values = {v.x, v.y, v.z, v.w};
  } else {
    static_assert(kWide == 1);
    values = {__ldcg(numbers + i)};
  }
  return values;
}

// A thread for each other rank waits for its `flag`. False for all threads of the block: given up.
__device__ bool wait_for_piece(const std::uint32_t* flag, std::uint32_t number, const ExchangeGroup& group) {
  bool come = true;
  if (flag != nullptr) {
    Patience patience{group};
    while (ptx::load_acquire_system(flag) != number) {
      if (!patience.over()) continue;
      come = false;
      break;
    }
  }
  return __syncthreads_and(come) != 0;
}

// A block takes whole pieces, the same as its like on the other ranks. It sends a few pieces ahead of those
// that it waits for, so that none of the blocks waits for what another one would send behind a wait.
template <class What, int kWide>
__global__ void __launch_bounds__(kThreads) pieces_kernel(What what, ExchangeGroup group, unsigned piece) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  ExchangeTable* const table = group.table;
  if (*static_cast<volatile std::uint32_t*>(&table->live) == 0) return take_own(what, group.rank);
  const std::uint32_t number = *static_cast<volatile std::uint32_t*>(&table->number);
  // What `from` sends to `to`.
  const auto numbers = [&](int from, int to) {
    return reinterpret_cast<float*>(part_of(table->inboxes[to], number, from, group.ranks) + kPacketBytes);
  };
  const auto flags = [&](int from, int to) {
    return reinterpret_cast<std::uint32_t*>(numbers(from, to) + most_in_pieces(group.ranks));
  };
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
        float* const to = numbers(group.rank, (group.rank + other) % group.ranks);
#pragma unroll
        for (unsigned k = 0; k < kPacksAtOnce; ++k) {
          if (i + k * kThreads < end) pack<kWide>(to, i + k * kThreads) = own[k];
        }
      }
    }
    __syncthreads();
    const int other = static_cast<int>(threadIdx.x);
    if (other < group.ranks && other != group.rank)
      ptx::store_release_system(flags(group.rank, other) + at, number);
  };

  const auto take_sum = [&](unsigned at) {
    const unsigned end = end_of(at, 0);
    for (unsigned i = at * piece + threadIdx.x; i < end; i += kPacksAtOnce * kThreads) {
      Pack<kWide> sum[kPacksAtOnce] = {};
      for (int rank = 0; rank < group.ranks; ++rank) {
        const float* const from = numbers(rank, group.rank);
        Pack<kWide> add[kPacksAtOnce];
#pragma unroll
        for (unsigned k = 0; k < kPacksAtOnce; ++k) {
          if (i + k * kThreads >= end) continue;
          add[k] = rank == group.rank ? what.template own<kWide>(i + k * kThreads)
                                      : load_arrived<kWide>(from, i + k * kThreads);
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
      const float* const from = numbers(rank, group.rank);
      const unsigned end = end_of(at, rank);
      for (unsigned i = at * piece + threadIdx.x; i < end; i += kThreads) {
        what.template take<kWide>(
            rank, i, rank == group.rank ? what.template own<kWide>(i) : load_arrived<kWide>(from, i));
      }
    }
  };

  const unsigned mine = blockIdx.x < pieces ? (pieces - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  for (unsigned turn = 0; turn < mine + kPiecesAhead; ++turn) {
    if (turn < mine) send(blockIdx.x + turn * gridDim.x);
    if (turn < kPiecesAhead) continue;
    const unsigned at = blockIdx.x + (turn - kPiecesAhead) * gridDim.x;
    const int from = static_cast<int>(threadIdx.x);
    const bool waits = from < group.ranks && from != group.rank;
    if (!wait_for_piece(waits ? flags(from, group.rank) + at : nullptr, number, group)) return;
    if constexpr (What::kAdds)
      take_sum(at);
    else
      take_parts(at);
  }
  end_block(table, number);
}

// Packs of four can be read and written there.
bool is_wide(const float* numbers) { return reinterpret_cast<std::uintptr_t>(numbers) % sizeof(float4) == 0; }

template <class What>
void exchange(Cuda& device, const ExchangeGroup& group, const What& what, std::size_t most, bool wide) {
  TROUPE_CHECK(group.ranks <= kMostPeers && most <= most_in_pieces(group.ranks));
  const auto blocks = [](std::size_t count, std::size_t each) {
    return static_cast<unsigned>(std::min<std::size_t>(kMostBlocks, (count + each - 1) / each));
  };
  if (most <= kMostInPackets) {
    troupe::cuda::launch(device, packets_kernel<What>, {.grid = blocks(most, 2 * kThreads), .block = kThreads},
                         what, group);
    return;
  }
  // As long as every block has one.
  const std::size_t pieces = std::clamp<std::size_t>(
      most / (kMostBlocks * kLeastPiece), 1, kPacksAtOnce);
  const std::size_t piece = pieces * kLeastPiece;
  const troupe::cuda::Shape shape{.grid = blocks(most, piece), .block = kThreads};
  if (wide)
    troupe::cuda::launch(device, pieces_kernel<What, 4>, shape, what, group, static_cast<unsigned>(piece / 4));
  else
    troupe::cuda::launch(device, pieces_kernel<What, 1>, shape, what, group, static_cast<unsigned>(piece));
}

}  // namespace

std::size_t exchange_inbox_bytes(int ranks) {
  return 2 * static_cast<std::size_t>(ranks) * source_bytes(ranks);
}

void run(Cuda& device, const SumOverRanks& op) {
  const std::size_t most = most_in_pieces(op.group.ranks);
  for (std::size_t at = 0; at < op.count; at += most) {
    const std::size_t count = std::min(most, op.count - at);
    const bool wide = count % 4 == 0 && is_wide(op.in) && is_wide(op.out);
    exchange(device, op.group, Sum{op.in + at, op.out + at, static_cast<unsigned>(count)}, count, wide);
  }
}

namespace {

int blocks_of_row(const AddRmsNorm& norm) {
  return (padded(norm.cols) + cuda::kNormTogether - 1) / cuda::kNormTogether;
}

}  // namespace

bool is_supported(const Cuda& device, const SumThenNorm& op) {
  const AddRmsNorm& norm = op.norm;
  const int stride = padded(norm.cols);
  return device.hopper() && norm.weight != nullptr && norm.out != nullptr && norm.add == nullptr &&
         norm.pick == nullptr && norm.codes == nullptr && stride <= kMostNormed &&
         norm.rows * blocks_of_row(norm) <= kMostNormBlocks && numbers_in(norm) <= kMostInPackets;
}

void run(Cuda& device, const SumThenNorm& op) {
  TROUPE_CHECK(op.group.ranks <= kMostPeers && is_supported(device, op));
  const AddRmsNorm& norm = op.norm;
  const int blocks = blocks_of_row(norm);
  const SumNormArgs arguments{op.in,     norm.residual,     norm.weight, norm.out,
                              norm.cols, padded(norm.cols), blocks,      norm.eps};
  const troupe::cuda::Shape shape{.grid = static_cast<unsigned>(norm.rows * blocks),
                                  .block = cuda::kNormThreads,
                                  .cluster = blocks,
                                  .overlap = {.reads_constant = norm.weight}};
  cuda::with_element(norm.dtype, [&](auto element) {
    troupe::cuda::launch(device, sum_norm_kernel<decltype(element)>, shape, arguments, op.group);
  });
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
    exchange(device, op.group, part, static_cast<std::size_t>(part.op.rows) * static_cast<std::size_t>(widest),
             wide);
  }
}

}  // namespace troupe::kernels
