// Launching the streaming products, and how they are cut. kernels/cuda/product/stream_block.cuh says how they work.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/stream.h"
#include "kernels/cuda/product/stream_block.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace troupe::kernels::cuda {
namespace {

using namespace streaming;

constexpr int kLeastInputs = 128;   ///< of a block of a cluster
constexpr int kLongInputs = 2048;   ///< of a block, where more could share them
constexpr int kShortInputs = 2048;  ///< of a group: its blocks are soon over, and one has more underway
constexpr int kMostBoxes = 8;       ///< of a stage
constexpr int kMostBoxesOfProcessor = 13;  ///< of weights, in rings: 104 KiB
constexpr int kMostWholeInputs = 4096;     ///< of 8 rows of x in shared memory: 64 KiB

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    stream(const StreamArgs a, const __grid_constant__ CUtensorMap weight_map,
           const __grid_constant__ CUtensorMap x_map) {
  extern __shared__ __align__(1024) char shared[];
  StreamBlock<Tile> block{.a = a, .shared = shared};
  const bool dense = a.groups.offsets == nullptr;
  if (dense) troupe::cuda::let_next_start();
  const bool brings_weights = block.warp == Tile::kWarps;
  if (brings_weights) {
    if (block.lane == 0) {
      const int of_x = Tile::kWholeX ? 0 : a.groups.gather != nullptr ? 32 : st::kBoxArrivals;
#pragma unroll 1
      for (int s = 0; s < a.stages; ++s) {
        st::barrier_init(block.full + 8 * s, st::kBoxArrivals + of_x);
        st::barrier_init(block.empty + 8 * s, Tile::kWarps);
      }
      st::barrier_init(block.got, 1);
      st::barrier_publish();
    }
    __syncwarp();
    if (dense) block.fill_ring(&weight_map);
  }
  __syncthreads();
  if (!dense) {
    if (!a.groups.settled) troupe::cuda::wait_for_previous();
    troupe::cuda::let_next_start();  // not earlier: this kernel holds the next one, if it is not settled
  }
  block.rows = find_rows(a.groups.offsets, a.groups.count, a.rows, Tile::kN, static_cast<int>(blockIdx.y));
  if (block.rows.count <= 0) return troupe::cuda::wait_for_previous();
  if (a.split > 1) {
    if (threadIdx.x == 0) st::barrier_expect(block.got, a.split * block.slice * block.rows.count * 4);
    st::cluster_arrive();
  }

  if (block.warp >= Tile::kWarps) {
    if (brings_weights) {
      if (!dense) block.fill_ring(&weight_map);
      block.refill_ring(&weight_map);
    }
    troupe::cuda::wait_for_previous();
    if (!Tile::kWholeX && !brings_weights) block.bring_x(&x_map);
    if (a.split > 1) st::cluster_wait();
    return;
  }
  typename StreamBlock<Tile>::WholeX whole;
  if constexpr (Tile::kWholeX) whole = block.place_whole_x();
  const auto operands = block.place_operands();
  const auto destination = block.place_sums();
  const auto first = block.mine(static_cast<int>(threadIdx.x));
  Four<typename Tile::T> four(a.ending, first.p, first.o);
  troupe::cuda::wait_for_previous();
  if constexpr (Tile::kWholeX) block.bring_whole_x(whole);
  if (first.there) four.read();
  typename StreamBlock<Tile>::Sums sums;
  block.multiply(sums, operands);
  block.hand_over(sums, destination);
  if (block.m_first < Tile::kM) block.finish(first, four);
}

/// Bytes of shared memory that a block may have.
int most_shared(const Cuda& device) {
  return (device.capability() >= 90 ? 227 : device.capability() == 80 ? 163 : 99) << 10;
}

template <class Tile>
void launch_tiles(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  const int inputs = row_stride(linear.weight.inputs);
  const bool grouped = linear.groups.offsets != nullptr;
  StreamArgs a{.weight = static_cast<const char*>(linear.weight.data),
         .x = static_cast<const char*>(linear.x),
         .row_bytes = static_cast<std::size_t>(inputs) * 2,
         .chunks = inputs / kChunk,
         .rows = linear.rows,
         .split = plan.split,
         .groups = linear.groups,
         .ending = ending_of(linear)};
  const int boxes = most_boxes(a.chunks, plan.split);
  a.block_boxes = boxes;
  const int whole = Tile::kWholeX ? boxes * kN * kRowBytes : 0;
  const int inbox = plan.split > 1 ? plan.split * kN * ((1 << log_slice_of(kM, plan.split)) + 4) * 4 : 0;
  const int alone = kN * (kM + 4) * 4;
  const auto bytes = [&] {
    const int ring = a.stages * stage_bytes_of(kM, Tile::kRingN, a.boxes);
    return kHeaderBytes + std::max(ring + whole + inbox, alone);
  };
  a.boxes = std::min(plan.boxes, boxes);
  a.stages = std::clamp(std::min(plan.stages, (boxes + a.boxes - 1) / a.boxes), 1, kMostStages);
  while (a.stages > 1 && bytes() > most_shared(device)) --a.stages;
  CUtensorMap weight_map{}, x_map{};
  if (device.hopper()) {
    const auto map = [&](const void* data, int rows, int groups, std::size_t stride, std::uint32_t box_rows) {
      return troupe::cuda::tensor_map(
          {.data = data,
           .dtype = linear.weight.dtype,
           .sizes = {static_cast<std::uint64_t>(inputs), static_cast<std::uint64_t>(rows),
                     static_cast<std::uint64_t>(groups)},
           .strides = {a.row_bytes, stride},
           .box = {kBox, box_rows, 1}});
    };
    weight_map = map(linear.weight.data, a.ending.outputs, grouped ? linear.groups.count : 1,
                     grouped ? linear.groups.weight_stride : a.row_bytes, kM);
    if (!Tile::kWholeX && linear.groups.gather == nullptr)
      x_map = map(linear.x, linear.rows, 1, a.row_bytes, kN);
  }
  const auto kernel = stream<Tile>;
  const troupe::cuda::Shape shape{
      .grid = dim3(static_cast<unsigned>(plan.split), static_cast<unsigned>(most_row_tiles(linear, kN)),
                   static_cast<unsigned>((a.ending.outputs + kM - 1) / kM)),
      .block = dim3(Tile::kThreads),
      .shared_bytes = static_cast<std::size_t>(bytes()),
      .cluster = plan.split,
      .overlap = {.holds_next = grouped && !linear.groups.settled,
                  .reads_constant = !grouped || linear.groups.settled ? linear.weight.data : nullptr,
                  .reads_settled = linear.groups.settled ? linear.groups.offsets : nullptr}};
  troupe::cuda::allow_shared(kernel, shape.shared_bytes);
  troupe::cuda::launch(device, kernel, shape, a, weight_map, x_map);
}

template <class T>
void start(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  switch (plan.tile_rows) {
    case 8: return launch_tiles<StreamTile<T, kOutputs, 8, 4, 1>>(device, linear, plan);
    case 16: return launch_tiles<StreamTile<T, kOutputs, 16, 4, 1>>(device, linear, plan);
    case 32: return launch_tiles<StreamTile<T, kOutputs, 32, 4, 1>>(device, linear, plan);
    default: return launch_tiles<StreamTile<T, kOutputs, 64, 4, 2>>(device, linear, plan);
  }
}

}  // namespace

bool stream_takes(const Cuda&, const Linear& linear) {
  return size_of(linear.weight.dtype) == 2 && (linear.ending != Ending::qkv || linear.kv.head_dim % 4 == 0);
}

// Found by trying, on an H200. Rings of 32 KiB, or 40, keep the memory busy and leave room for many blocks; a
// matrix that lies whole in the rings of all multiprocessors has come before the kernel's turn.
StreamPlan stream_plan(const Cuda& device, const Linear& linear) {
  const bool grouped = linear.groups.offsets != nullptr;
  const int inputs = row_stride(linear.weight.inputs);
  const int tiles = (padded(linear.weight.outputs) + kOutputs - 1) / kOutputs;
  const int most = device.multiprocessors();
  StreamPlan plan;
  if (device.batch_invariant()) {
    plan.tile_rows = 32;
  } else if (grouped) {  // some groups have several times the average
    const int average = linear.rows / linear.groups.count;
    plan.tile_rows = average <= 1 ? 8 : average <= 16 ? 16 : 32;
  } else {
    plan.tile_rows = linear.rows <= 8 ? 8 : linear.rows <= 16 ? 16 : linear.rows <= 32 ? 32 : 64;
  }
  if (device.hopper() && !grouped) {
    // More rows make a cluster's sums more to send, and x more to read.
    const int wanted = plan.tile_rows == 8    ? 2 * most
                       : plan.tile_rows == 16 ? most * 7 / 5
                       : plan.tile_rows == 32 ? most
                                              : most * 9 / 20;
    const auto too_few = [&] {
      const int blocks = tiles * plan.split;
      return blocks < wanted || (blocks < 2 * most && inputs / plan.split > kLongInputs) ||
             (plan.tile_rows == 8 && inputs / plan.split > kMostWholeInputs);
    };
    while (plan.split < kMostSplit && inputs / (2 * plan.split) >= kLeastInputs && too_few()) plan.split *= 2;
  }
  if (plan.tile_rows == 8 && inputs / plan.split > kMostWholeInputs) plan.tile_rows = 16;
  plan.boxes = plan.tile_rows == 8 ? 1 : 2;
  plan.stages = plan.tile_rows > 8 ? 3 : grouped && inputs <= kShortInputs ? 5 : 4;
  const int boxes = most_boxes(inputs / kChunk, plan.split);
  if (!grouped && plan.tile_rows == 8 && boxes <= kMostBoxes &&
      tiles * plan.split * boxes <= most * kMostBoxesOfProcessor) {
    plan.boxes = boxes;
    plan.stages = 1;
  }
  return plan;
}

void run_stream(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  if (linear.rows <= 0) return;
  if (linear.weight.dtype == DType::bf16) {
    start<Bf16>(device, linear, plan);
  } else {
    start<F16>(device, linear, plan);
  }
}

void run_stream(Cuda& device, const Linear& linear) {
  run_stream(device, linear, stream_plan(device, linear));
}

}  // namespace troupe::kernels::cuda
