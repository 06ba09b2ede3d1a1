#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/exchange.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/exchange.h"

namespace troupe::kernels {
namespace {

using cuda::Inboxes;
using cuda::kNormThreads;
using cuda::kNormTogether;

constexpr int kMostHeld = 8;  // times four columns of a thread; blocks of a cluster
constexpr int kMostColumns = kMostHeld * kNormTogether;
constexpr int kMostClusterBlocks = 512;
constexpr int kMostRowBlocks = 528;
constexpr int kMostTogether = 2;  // rows of a piece
// Of an exchange in two steps: few, so that a block sends the next rows before it waits for the ones before.
constexpr int kMostTwoStepBlocks = 264;

struct SumNormArgs {
  float* in;
  float* residual;
  const float* weight;
  void* out;
  int rows, cols, stride;
  float eps;
  bool never;
};

__device__ float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// A cluster for a row, whose numbers go by packets; a thread has four columns. The blocks tell each other the
// squares, so that each gets their sum in norm_kernel's order.
template <class Element>
__global__ void __launch_bounds__(kNormThreads)
    cluster_kernel(SumNormArgs a, int blocks, ExchangeGroup group) {
  __shared__ float squares[kMostHeld][kNormThreads];
  ptx::cluster_arrive_relaxed();
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x) % blocks;
  const int column = block * kNormTogether + thread * 4;
  const bool mine = column < a.stride;
  const std::size_t row = static_cast<std::size_t>(blockIdx.x) / blocks * a.stride;
  float4 weight{};
  if (mine) weight = cuda::load_four(a.weight + column);  // constant while the step runs
  troupe::cuda::wait_for_previous(a.never);
  troupe::cuda::let_next_start();
  const bool live = cuda::is_live(group);
  const std::uint32_t number = cuda::number_of(group);
  const Inboxes inboxes(group, number);

  float4 h{};
  if (mine) h = cuda::load_four(a.in + row + column);
  if (mine && live) {
    // A thread's two packets stand apart, so that those of neighbours stand side by side.
    const std::size_t at = (row + static_cast<std::size_t>(block) * kNormTogether) / 2 + thread;
    const auto apart = static_cast<std::size_t>(min(kNormThreads, (a.stride - block * kNormTogether) / 4));
    const float4 own = h;
    for (int other = 1; other < group.ranks; ++other) {
      uint4* const to = inboxes.packets(group.rank, (group.rank + other) % group.ranks) + at;
      ptx::store_volatile_16(to, {__float_as_uint(own.x), number, __float_as_uint(own.y), number});
      ptx::store_volatile_16(to + apart, {__float_as_uint(own.z), number, __float_as_uint(own.w), number});
    }
    for (int rank = 0; rank < group.ranks; ++rank) {
      float4 add = own;
      if (rank != group.rank) {
        uint4 come[2];
        if (!cuda::wait_for_packets(inboxes.packets(rank, group.rank) + at, apart, number, group, come))
          break;
        add = make_float4(__uint_as_float(come[0].x), __uint_as_float(come[0].z), __uint_as_float(come[1].x),
                          __uint_as_float(come[1].z));
      }
      h = rank == 0 ? add : plus(h, add);
    }
  }

  const float square = mine ? cuda::squares_of(h) : 0.0f;
  ptx::warp_cluster_wait();  // all blocks of the cluster have started
  for (int other = 0; other < blocks; ++other) {
    ptx::store_peer(ptx::peer_address(&squares[block][thread], static_cast<unsigned>(other)), square);
  }
  ptx::cluster_arrive();
  if (mine) {
    *reinterpret_cast<float4*>(a.residual + row + column) = h;
    if (a.in != a.residual) *reinterpret_cast<float4*>(a.in + row + column) = float4{};
  }
  ptx::cluster_wait();
  float sum = 0;
  for (int other = 0; other < blocks; ++other) sum += squares[other][thread];
  const float factor = cuda::norm_factor(sum, a.cols, a.eps);
  if (mine) {
    const float4 y = cuda::normed<Element>(h, factor, weight);
    cuda::store_four(static_cast<Element*>(a.out) + row + column, y.x, y.y, y.z, y.w);
  }
  cuda::end_block(group, number);
}

// Of a row that a block holds, a thread has kHeld times four columns: calls body(k, column).
template <int kHeld, class Body>
__device__ __forceinline__ void each_held(int stride, Body&& body) {
  const int first = static_cast<int>(threadIdx.x) * 4;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * kNormTogether < stride) body(k, first + k * kNormTogether);
  }
}

// Stores the sum `h` of a row, which begins at element `at`, and its norm.
template <class Element, int kHeld>
__device__ __forceinline__ void finish_held(const SumNormArgs& a, std::size_t at, const float4 (&h)[kHeld],
                                            const float4 (&weight)[kHeld]) {
  float squares = 0;
  each_held<kHeld>(a.stride, [&](int k, int i) {
    squares += cuda::squares_of(h[k]);
    *reinterpret_cast<float4*>(a.residual + at + i) = h[k];
    if (a.in != a.residual) *reinterpret_cast<float4*>(a.in + at + i) = float4{};
  });
  const float factor = cuda::norm_factor(squares, a.cols, a.eps);
  each_held<kHeld>(a.stride, [&](int k, int i) {
    const float4 y = cuda::normed<Element>(h[k], factor, weight[k]);
    cuda::store_four(static_cast<Element*>(a.out) + at + i, y.x, y.y, y.z, y.w);
  });
  __syncthreads();  // norm_factor()'s memory may be written again
}

// A block has a row at a time, and a thread kHeld times four columns of it. A block sends the next piece,
// `together` rows, before it waits for one.
template <class Element, int kHeld>
__global__ void __launch_bounds__(kNormThreads, kHeld <= 3 ? 4 : 2)
    rows_kernel(SumNormArgs a, int together, ExchangeGroup group) {
  const auto each = [&](auto&& body) { each_held<kHeld>(a.stride, body); };
  float4 weight[kHeld];
  each([&](int k, int i) { weight[k] = cuda::load_four(a.weight + i); });  // constant while the step runs
  troupe::cuda::wait_for_previous(a.never);
  troupe::cuda::let_next_start();
  const bool live = cuda::is_live(group);
  const std::uint32_t number = cuda::number_of(group);
  const Inboxes inboxes(group, number);

  const auto send = [&](int row) {
    const std::size_t at = static_cast<std::size_t>(row) * a.stride;
    float4 own[kHeld];
    each([&](int k, int i) { own[k] = cuda::load_four(a.in + at + i); });
    for (int other = 1; other < group.ranks; ++other) {
      float* const to = inboxes.numbers(group.rank, (group.rank + other) % group.ranks) + at;
      each([&](int k, int i) { *reinterpret_cast<float4*>(to + i) = own[k]; });
    }
  };
  const auto finish = [&](int row) {
    const std::size_t at = static_cast<std::size_t>(row) * a.stride;
    float4 h[kHeld];
    for (int rank = 0; rank < (live ? group.ranks : 1); ++rank) {
      const float* const from = rank == group.rank || !live ? a.in : inboxes.numbers(rank, group.rank);
      float4 add[kHeld];
      each([&](int k, int i) { add[k] = __ldcg(reinterpret_cast<const float4*>(from + at + i)); });
      each([&](int k, int) { h[k] = rank == 0 ? add[k] : plus(h[k], add[k]); });
    }
    finish_held<Element>(a, at, h, weight);
  };

  const int pieces = (a.rows + together - 1) / together;
  const auto rows_of = [&](int piece, auto&& body) {
    for (int row = piece * together; row < min(a.rows, (piece + 1) * together); ++row) body(row);
  };
  const int step = static_cast<int>(gridDim.x), begin = static_cast<int>(blockIdx.x);
  if (!live) {
    for (int piece = begin; piece < pieces; piece += step) rows_of(piece, finish);
    return;
  }
  for (int piece = begin; piece < pieces + step; piece += step) {
    if (piece < pieces) {
      rows_of(piece, send);
      cuda::tell(inboxes, group, static_cast<std::size_t>(piece), number);
    }
    const int due = piece - step;
    if (due < 0) continue;
    if (!cuda::wait_for_piece(inboxes, group, static_cast<std::size_t>(due), number)) return;
    rows_of(due, finish);
  }
  cuda::end_block(group, number);
}

// The same in two steps: each rank adds up `run` rows, but for what the end takes away, and all norm every
// row. A block has one row of each run at a time.
template <class Element, int kHeld>
__global__ void __launch_bounds__(kNormThreads, kHeld <= 3 ? 4 : 2)
    two_steps_kernel(SumNormArgs a, int run, ExchangeGroup group) {
  const auto each = [&](auto&& body) { each_held<kHeld>(a.stride, body); };
  float4 weight[kHeld];
  each([&](int k, int i) { weight[k] = cuda::load_four(a.weight + i); });  // constant while the step runs
  troupe::cuda::wait_for_previous(a.never);
  troupe::cuda::let_next_start();
  const bool live = cuda::is_live(group);
  const std::uint32_t number = cuda::number_of(group);
  const Inboxes inboxes(group, number);
  const std::size_t sums = most_added_by_one(group.ranks);          // where they begin in an inbox
  const std::size_t sum_flags = cuda::most_flags(group.ranks) / 2;  // likewise

  // Calls body(rank, row) for the other ranks' rows of this place in their runs.
  const auto others = [&](int at, auto&& body) {
    for (int other = 1; other < group.ranks; ++other) {
      const int rank = (group.rank + other) % group.ranks;
      if (rank * run + at < a.rows) body(rank, rank * run + at);
    }
  };
  const auto place_of = [&](int row) { return static_cast<std::size_t>(row) * a.stride; };
  const auto send_parts = [&](int at) {
    others(at, [&](int rank, int row) {
      float* const to = inboxes.numbers(group.rank, rank) + place_of(at);
      float4 own[kHeld];
      each([&](int k, int i) { own[k] = cuda::load_four(a.in + place_of(row) + i); });
      each([&](int k, int i) { *reinterpret_cast<float4*>(to + i) = own[k]; });
    });
    cuda::tell(inboxes, group, static_cast<std::size_t>(at), number);
  };
  const auto norm = [&](int row, const float4(&h)[kHeld]) {
    finish_held<Element>(a, place_of(row), h, weight);
  };
  const auto add_up = [&](int at) {
    const int row = group.rank * run + at;
    const bool mine = row < a.rows;  // the same for the whole block
    float4 h[kHeld];
    for (int rank = 0; mine && rank < group.ranks; ++rank) {
      const float* const from =
          rank == group.rank ? a.in + place_of(row) : inboxes.numbers(rank, group.rank) + place_of(at);
      float4 add[kHeld];
      each([&](int k, int i) { add[k] = __ldcg(reinterpret_cast<const float4*>(from + i)); });
      each([&](int k, int) { h[k] = rank == 0 ? add[k] : plus(h[k], add[k]); });
    }
    for (int other = 1; mine && other < group.ranks; ++other) {
      float* const to = inboxes.numbers(group.rank, (group.rank + other) % group.ranks) + sums + place_of(at);
      each([&](int k, int i) { *reinterpret_cast<float4*>(to + i) = h[k]; });
    }
    cuda::tell(inboxes, group, sum_flags + at, number);
    if (mine) norm(row, h);
  };
  const auto take_sums = [&](int at) {
    others(at, [&](int rank, int row) {
      const float* const from = inboxes.numbers(rank, group.rank) + sums + place_of(at);
      float4 h[kHeld];
      each([&](int k, int i) { h[k] = __ldcg(reinterpret_cast<const float4*>(from + i)); });
      norm(row, h);
    });
  };

  const int step = static_cast<int>(gridDim.x), begin = static_cast<int>(blockIdx.x);
  if (!live) {
    for (int row = begin; row < a.rows; row += step) {
      float4 own[kHeld];
      each([&](int k, int i) { own[k] = cuda::load_four(a.in + place_of(row) + i); });
      norm(row, own);
    }
    return;
  }
  for (int at = begin; at < run + 2 * step; at += step) {
    if (at < run) send_parts(at);
    if (const int due = at - step; due >= 0 && due < run) {
      if (!cuda::wait_for_piece(inboxes, group, static_cast<std::size_t>(due), number)) return;
      add_up(due);
    }
    if (const int due = at - 2 * step; due >= 0) {
      if (!cuda::wait_for_piece(inboxes, group, sum_flags + due, number)) return;
      take_sums(due);
    }
  }
  cuda::end_block(group, number);
}

int blocks_of_row(const AddRmsNorm& norm) { return (padded(norm.cols) + kNormTogether - 1) / kNormTogether; }

SumNormArgs arguments_of(const SumThenNorm& op, int first, int rows) {
  const AddRmsNorm& norm = op.norm;
  const int stride = padded(norm.cols);
  const std::size_t at = static_cast<std::size_t>(first) * static_cast<std::size_t>(stride);
  return {.in = op.in + at,
          .residual = norm.residual + at,
          .weight = norm.weight,
          .out = static_cast<std::byte*>(norm.out) + at * size_of(norm.dtype),
          .rows = rows,
          .cols = norm.cols,
          .stride = stride,
          .eps = norm.eps,
          .never = false};
}

void run_rows(Cuda& device, const SumThenNorm& op) {
  const AddRmsNorm& norm = op.norm;
  const std::size_t most =
      std::min(most_in_pieces(op.group.ranks) / static_cast<std::size_t>(padded(norm.cols)),
               cuda::most_flags(op.group.ranks));
  for (int first = 0; first < norm.rows; first += static_cast<int>(most)) {
    const SumNormArgs arguments =
        arguments_of(op, first, std::min(norm.rows - first, static_cast<int>(most)));
    const int together = std::clamp(arguments.rows / kMostRowBlocks, 1, kMostTogether);
    const int pieces = (arguments.rows + together - 1) / together;
    const troupe::cuda::Shape shape{.grid = static_cast<unsigned>(std::min(pieces, kMostRowBlocks)),
                                    .block = kNormThreads,
                                    .overlap = {.reads_constant = norm.weight, .writes_settled = norm.out}};
    cuda::with_element(norm.dtype, [&](auto element) {
      using T = decltype(element);
      if (blocks_of_row(norm) <= 3)
        troupe::cuda::launch(device, rows_kernel<T, 3>, shape, arguments, together, op.group);
      else
        troupe::cuda::launch(device, rows_kernel<T, kMostHeld>, shape, arguments, together, op.group);
    });
  }
}

void run_in_two_steps(Cuda& device, const SumThenNorm& op) {
  const AddRmsNorm& norm = op.norm;
  const std::size_t of_one =
      std::min(most_added_by_one(op.group.ranks) / static_cast<std::size_t>(padded(norm.cols)),
               cuda::most_flags(op.group.ranks) / 2);
  const int most = op.group.ranks * static_cast<int>(of_one);
  for (int first = 0; first < norm.rows; first += most) {
    const SumNormArgs arguments = arguments_of(op, first, std::min(norm.rows - first, most));
    const int run = (arguments.rows + op.group.ranks - 1) / op.group.ranks;
    const troupe::cuda::Shape shape{.grid = static_cast<unsigned>(std::min(run, kMostTwoStepBlocks)),
                                    .block = kNormThreads,
                                    .overlap = {.reads_constant = norm.weight, .writes_settled = norm.out}};
    cuda::with_element(norm.dtype, [&](auto element) {
      using T = decltype(element);
      const auto kernel = blocks_of_row(norm) <= 3 ? two_steps_kernel<T, 3> : two_steps_kernel<T, kMostHeld>;
      troupe::cuda::launch(device, kernel, shape, arguments, run, op.group);
    });
  }
}

}  // namespace

bool is_supported(const SumThenNorm& op) {
  const AddRmsNorm& norm = op.norm;
  return norm.weight != nullptr && norm.out != nullptr && norm.add == nullptr && norm.pick == nullptr &&
         norm.codes == nullptr && padded(norm.cols) <= kMostColumns;
}

void run(Cuda& device, const SumThenNorm& op) {
  TROUPE_CHECK(op.group.ranks <= kMostPeers && is_supported(op));
  const AddRmsNorm& norm = op.norm;
  if (numbers_in(norm) >= op.group.two_steps_from && op.group.ranks > 1) return run_in_two_steps(device, op);
  const int blocks = blocks_of_row(norm);
  if (!device.features().clusters || numbers_in(norm) > kMostInPackets ||
      norm.rows * blocks > kMostClusterBlocks)
    return run_rows(device, op);
  const troupe::cuda::Shape shape{.grid = static_cast<unsigned>(norm.rows * blocks),
                                  .block = kNormThreads,
                                  .cluster = blocks,
                                  .overlap = {.reads_constant = norm.weight, .writes_settled = norm.out}};
  cuda::with_element(norm.dtype, [&](auto element) {
    troupe::cuda::launch(device, cluster_kernel<decltype(element)>, shape, arguments_of(op, 0, norm.rows),
                         blocks, op.group);
  });
}

}  // namespace troupe::kernels
