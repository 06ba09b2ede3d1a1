#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/exchange.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kMostBlocks = 64;  // blocks of an exchange wait; the GPU must have room for all of them
constexpr int kSpinsPerLook = 4096;

constexpr std::size_t kPacketBytes = 2 * kMostInPackets * sizeof(float);
constexpr std::size_t kPieceBytes = kMostInPieces * sizeof(float);
constexpr std::size_t kPieces = kMostInPieces / kExchangePiece;
constexpr std::size_t kFlagBytes = kPieces * sizeof(std::uint32_t);
constexpr std::size_t kSourceBytes = kPacketBytes + kPieceBytes + kFlagBytes;
static_assert(kSourceBytes % 16 == 0);

// The part of an inbox that `source` writes in the exchange `number`.
__device__ std::byte* part_of(std::byte* inbox, std::uint32_t number, int source, int ranks) {
  return inbox + (static_cast<std::size_t>(number & 1) * ranks + source) * kSourceBytes;
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

// What is exchanged, as one row of numbers for each rank: the kernels below know nothing else of it.
struct Sum {
  static constexpr bool kAdds = true;
  float* in;
  float* out;
  std::size_t total;
  __device__ std::size_t count(int) const { return total; }
  __device__ float own(std::size_t i) const { return in[i]; }
  __device__ void take(int, std::size_t i, float value) const { out[i] = value; }
  __device__ void done(std::size_t i) const {
    if (in != out) in[i] = 0;
  }
};

struct Gather {
  static constexpr bool kAdds = false;
  GatherColumns op;
  __device__ int columns(int rank) const { return op.first[rank + 1] - op.first[rank]; }
  __device__ std::size_t count(int rank) const { return static_cast<std::size_t>(op.rows) * columns(rank); }
  __device__ float own(std::size_t i) const {
    const std::size_t width = columns(op.group.rank);
    return op.in[i / width * op.in_stride + i % width];
  }
  __device__ void take(int rank, std::size_t i, float value) const {
    const std::size_t width = columns(rank);
    op.out[i / width * op.out_stride + op.first[rank] + i % width] = value;
  }
  __device__ void done(std::size_t) const {}
};

template <class What>
__device__ void take_own(const What& what, int rank) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < what.count(rank); i += step) {
    what.take(rank, i, what.own(i));
    what.done(i);
  }
}

// False: given up.
__device__ bool wait_for_packet(const uint4* from, std::uint32_t number, const ExchangeGroup& group, uint4& v) {
  Patience patience{group};
  for (;;) {
    v = ptx::load_volatile_16(from);
    if (v.y == number && v.w == number) return true;
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
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kThreads;

  const std::size_t own = what.count(group.rank);
  for (std::size_t i = first; 2 * i < own; i += step) {
    const uint4 v{__float_as_uint(what.own(2 * i)), number,
                  2 * i + 1 < own ? __float_as_uint(what.own(2 * i + 1)) : 0, number};
    for (int other = 1; other < group.ranks; ++other) {
      const int to = (group.rank + other) % group.ranks;
      ptx::store_volatile_16(reinterpret_cast<uint4*>(part_of(table->inboxes[to], number, group.rank, group.ranks)) + i, v);
    }
  }

  std::byte* const inbox = table->inboxes[group.rank];
  if constexpr (What::kAdds) {
    for (std::size_t i = first; 2 * i < own; i += step) {
      const bool two = 2 * i + 1 < own;
      float sum[2] = {};
      for (int rank = 0; rank < group.ranks; ++rank) {
        float add[2];
        if (rank == group.rank) {
          add[0] = what.own(2 * i);
          add[1] = two ? what.own(2 * i + 1) : 0.0f;
        } else {
          uint4 v;
          const auto* from = reinterpret_cast<const uint4*>(part_of(inbox, number, rank, group.ranks)) + i;
          if (!wait_for_packet(from, number, group, v)) return;
          add[0] = __uint_as_float(v.x);
          add[1] = __uint_as_float(v.z);
        }
        sum[0] = rank == 0 ? add[0] : sum[0] + add[0];
        sum[1] = rank == 0 ? add[1] : sum[1] + add[1];
      }
      what.take(0, 2 * i, sum[0]);
      what.done(2 * i);
      if (!two) continue;
      what.take(0, 2 * i + 1, sum[1]);
      what.done(2 * i + 1);
    }
  } else {
    take_own(what, group.rank);
    for (int other = 1; other < group.ranks; ++other) {
      const int rank = (group.rank + other) % group.ranks;
      const auto* from = reinterpret_cast<const uint4*>(part_of(inbox, number, rank, group.ranks));
      const std::size_t count = what.count(rank);
      for (std::size_t i = first; 2 * i < count; i += step) {
        uint4 v;
        if (!wait_for_packet(from + i, number, group, v)) return;
        what.take(rank, 2 * i, __uint_as_float(v.x));
        if (2 * i + 1 < count) what.take(rank, 2 * i + 1, __uint_as_float(v.z));
      }
    }
  }
  end_block(table, number);
}

// One block for a row; its packets stand where packets_kernel has them. The threads are groups of
// kNormThreads, each of which takes every so many columns, so that a row is sent at once; for the squares
// every group has all columns.
constexpr int kNormGroups = 4;
constexpr int kNormHeld = 2;  // times four columns of a thread
constexpr int kMostNormed = kNormHeld * kNormGroups * cuda::kNormTogether;

struct SumNormArgs {
  float* in;
  float* residual;
  const float* weight;
  void* out;
  int cols, stride;
  float eps;
};

template <class Element>
__global__ void __launch_bounds__(kNormGroups* cuda::kNormThreads)
    sum_norm_kernel(SumNormArgs a, ExchangeGroup group) {
  const int lane = threadIdx.x % cuda::kNormThreads;
  const int groups = blockDim.x / cuda::kNormThreads;
  const auto column = [&](int held) {
    return lane * 4 +
           (static_cast<int>(threadIdx.x) / cuda::kNormThreads + held * groups) * cuda::kNormTogether;
  };
  float4 weight[kNormHeld], h[kNormHeld];
#pragma unroll
  for (int k = 0; k < kNormHeld; ++k) {
    if (column(k) < a.stride)
      weight[k] = cuda::load_four(a.weight + column(k));  // constant while the step runs
  }
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  ExchangeTable* const table = group.table;
  const bool live = *static_cast<volatile std::uint32_t*>(&table->live) != 0;
  const std::uint32_t number = *static_cast<volatile std::uint32_t*>(&table->number);
  const std::size_t row = static_cast<std::size_t>(blockIdx.x) * a.stride;
  const auto packets = [&](int to, int from, int i) {
    return reinterpret_cast<uint4*>(part_of(table->inboxes[to], number, from, group.ranks)) + (row + i) / 2;
  };

#pragma unroll
  for (int k = 0; k < kNormHeld; ++k) {
    const int i = column(k);
    if (i >= a.stride) continue;
    h[k] = cuda::load_four(a.in + row + i);
    if (!live) continue;
    for (int other = 1; other < group.ranks; ++other) {
      const int to = (group.rank + other) % group.ranks;
      uint4* const at = packets(to, group.rank, i);
      ptx::store_volatile_16(at, {__float_as_uint(h[k].x), number, __float_as_uint(h[k].y), number});
      ptx::store_volatile_16(at + 1, {__float_as_uint(h[k].z), number, __float_as_uint(h[k].w), number});
    }
  }

  __shared__ float squares[kNormHeld * kNormGroups][cuda::kNormThreads];
#pragma unroll
  for (int k = 0; k < kNormHeld; ++k) {
    const int i = column(k);
    if (i >= a.stride) continue;
    const float4 own = h[k];
    for (int rank = 0; live && rank < group.ranks; ++rank) {
      float4 add = own;
      if (rank != group.rank) {
        const uint4* const at = packets(group.rank, rank, i);
        uint4 first, second;
        if (!wait_for_packet(at, number, group, first) || !wait_for_packet(at + 1, number, group, second))
          break;
        add = make_float4(__uint_as_float(first.x), __uint_as_float(first.z), __uint_as_float(second.x),
                          __uint_as_float(second.z));
      }
      h[k] = rank == 0 ? add : make_float4(h[k].x + add.x, h[k].y + add.y, h[k].z + add.z, h[k].w + add.w);
    }
    *reinterpret_cast<float4*>(a.residual + row + i) = h[k];
    if (a.in != a.residual) *reinterpret_cast<float4*>(a.in + row + i) = float4{};
    squares[i / cuda::kNormTogether][lane] = cuda::squares_of(h[k]);
  }
  __syncthreads();
  float sum = 0;
  for (int i = lane * 4; i < a.stride; i += cuda::kNormTogether)
    sum += squares[i / cuda::kNormTogether][lane];
  const float factor = cuda::norm_factor(sum, a.cols, a.eps);
#pragma unroll
  for (int k = 0; k < kNormHeld; ++k) {
    if (column(k) >= a.stride) continue;
    const float4 y = cuda::normed<Element>(h[k], factor, weight[k]);
    cuda::store_four(static_cast<Element*>(a.out) + row + column(k), y.x, y.y, y.z, y.w);
  }
  end_block(table, number);
}

// Thread 0 waits; false for all threads of the block: given up.
__device__ bool wait_for_piece(const std::uint32_t* flag, std::uint32_t number, const ExchangeGroup& group) {
  __shared__ int come;
  if (threadIdx.x == 0) {
    Patience patience{group};
    come = 1;
    while (ptx::load_acquire_system(flag) != number) {
      if (!patience.over()) continue;
      come = 0;
      break;
    }
  }
  __syncthreads();
  const bool answer = come != 0;
  __syncthreads();
  return answer;
}

// A block takes whole pieces, each from its sending to its end, so that it waits only for what the other
// ranks' blocks send before they wait themselves.
template <class What>
__global__ void __launch_bounds__(kThreads) pieces_kernel(What what, ExchangeGroup group) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  ExchangeTable* const table = group.table;
  if (*static_cast<volatile std::uint32_t*>(&table->live) == 0) return take_own(what, group.rank);
  const std::uint32_t number = *static_cast<volatile std::uint32_t*>(&table->number);
  const auto numbers = [&](std::byte* part) { return reinterpret_cast<float*>(part + kPacketBytes); };
  const auto flags = [&](std::byte* part) {
    return reinterpret_cast<std::uint32_t*>(part + kPacketBytes + kPieceBytes);
  };
  std::byte* const inbox = table->inboxes[group.rank];
  std::size_t most = 0;
  for (int rank = 0; rank < group.ranks; ++rank) most = max(most, what.count(rank));
  const std::size_t own = what.count(group.rank);

  for (std::size_t piece = blockIdx.x; piece * kExchangePiece < most; piece += gridDim.x) {
    const std::size_t begin = piece * kExchangePiece;
    const auto end_of = [&](std::size_t count) { return min(begin + kExchangePiece, count); };
    for (std::size_t i = begin + threadIdx.x; i < end_of(own); i += kThreads) {
      const float value = what.own(i);
      for (int other = 1; other < group.ranks; ++other) {
        const int to = (group.rank + other) % group.ranks;
        numbers(part_of(table->inboxes[to], number, group.rank, group.ranks))[i] = value;
      }
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int other = 1; other < group.ranks; ++other) {
        const int to = (group.rank + other) % group.ranks;
        ptx::store_release_system(flags(part_of(table->inboxes[to], number, group.rank, group.ranks)) + piece, number);
      }
    }
    for (int rank = 0; rank < group.ranks; ++rank) {
      if (rank == group.rank) continue;
      if (!wait_for_piece(flags(part_of(inbox, number, rank, group.ranks)) + piece, number, group)) return;
    }
    if constexpr (What::kAdds) {
      for (std::size_t i = begin + threadIdx.x; i < end_of(own); i += kThreads) {
        float sum = 0;
        for (int rank = 0; rank < group.ranks; ++rank) {
          const float add = rank == group.rank ? what.own(i)
                                               : __ldcg(numbers(part_of(inbox, number, rank, group.ranks)) + i);
          sum = rank == 0 ? add : sum + add;
        }
        what.take(0, i, sum);
        what.done(i);
      }
    } else {
      for (int rank = 0; rank < group.ranks; ++rank) {
        const float* const from = numbers(part_of(inbox, number, rank, group.ranks));
        for (std::size_t i = begin + threadIdx.x; i < end_of(what.count(rank)); i += kThreads) {
          what.take(rank, i, rank == group.rank ? what.own(i) : __ldcg(from + i));
        }
      }
    }
  }
  end_block(table, number);
}

template <class What>
void exchange(Cuda& device, const ExchangeGroup& group, const What& what, std::size_t most) {
  TROUPE_CHECK(group.ranks <= kMostPeers && most <= kMostInPieces);
  const auto blocks = [](std::size_t count, std::size_t each) {
    return static_cast<unsigned>(std::min<std::size_t>(kMostBlocks, (count + each - 1) / each));
  };
  if (most <= kMostInPackets) {
    troupe::cuda::launch(device, packets_kernel<What>, {.grid = blocks(most, 2 * kThreads), .block = kThreads}, what,
                         group);
  } else {
    troupe::cuda::launch(device, pieces_kernel<What>, {.grid = blocks(most, kExchangePiece), .block = kThreads}, what,
                         group);
  }
}

}  // namespace

std::size_t exchange_inbox_bytes(int ranks) { return 2 * static_cast<std::size_t>(ranks) * kSourceBytes; }

void run(Cuda& device, const SumOverRanks& op) {
  for (std::size_t at = 0; at < op.count; at += kMostInPieces) {
    const std::size_t count = std::min(kMostInPieces, op.count - at);
    exchange(device, op.group, Sum{op.in + at, op.out + at, count}, count);
  }
}

bool is_supported(const SumThenNorm& op) {
  const AddRmsNorm& norm = op.norm;
  const int stride = padded(norm.cols);
  return norm.weight != nullptr && norm.out != nullptr && norm.add == nullptr && norm.pick == nullptr &&
         norm.codes == nullptr && stride <= kMostNormed && norm.rows <= kMostBlocks &&
         static_cast<std::size_t>(norm.rows) * static_cast<std::size_t>(stride) <= kMostInPackets;
}

void run(Cuda& device, const SumThenNorm& op) {
  TROUPE_CHECK(op.group.ranks <= kMostPeers && is_supported(op));
  const AddRmsNorm& norm = op.norm;
  const SumNormArgs arguments{op.in,     norm.residual,     norm.weight, norm.out,
                              norm.cols, padded(norm.cols), norm.eps};
  const int groups =
      std::min(kNormGroups, (padded(norm.cols) + cuda::kNormTogether - 1) / cuda::kNormTogether);
  const troupe::cuda::Shape shape{.grid = static_cast<unsigned>(norm.rows),
                                  .block = static_cast<unsigned>(groups * cuda::kNormThreads),
                                  .overlap = {.reads_constant = norm.weight}};
  cuda::with_element(norm.dtype, [&](auto element) {
    troupe::cuda::launch(device, sum_norm_kernel<decltype(element)>, shape, arguments, op.group);
  });
}

void run(Cuda& device, const GatherColumns& op) {
  int widest = 0;
  for (int rank = 0; rank < op.group.ranks; ++rank) widest = std::max(widest, op.first[rank + 1] - op.first[rank]);
  TROUPE_CHECK(widest > 0 && static_cast<std::size_t>(widest) <= kMostInPieces);
  const auto at_once = static_cast<int>(kMostInPieces / static_cast<std::size_t>(widest));
  for (int row = 0; row < op.rows; row += at_once) {
    Gather part{op};
    part.op.in += static_cast<std::size_t>(row) * op.in_stride;
    part.op.out += static_cast<std::size_t>(row) * op.out_stride;
    part.op.rows = std::min(at_once, op.rows - row);
    exchange(device, op.group, part, static_cast<std::size_t>(part.op.rows) * static_cast<std::size_t>(widest));
  }
}

}  // namespace troupe::kernels
