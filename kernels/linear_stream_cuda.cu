// Launching the streaming products. How they are cut: kernels/cuda/product/stream.h; how a block works:
// stream_block.cuh.
#include <algorithm>
#include <iterator>

#include "kernels/cuda/product/stream_launch.cuh"
#include "kernels/cuda/product/stream_resident.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/quantise_rows.h"

namespace troupe::kernels::cuda {
namespace {

using namespace streaming;

/// A block's tile of rows, of those of all groups, and its tile of outputs.
struct GridTile {
  int rows, outputs;
};

/// Blocks of groups whose rows are known come first: they run while the others wait.
__device__ __forceinline__ GridTile find_tile(const StreamArgs& a) {
  const int rows = static_cast<int>(blockIdx.y), outputs = static_cast<int>(blockIdx.z);
  if (a.known_tiles == 0) return {rows, outputs};
  int block = rows + static_cast<int>(gridDim.y) * outputs;
  const int known = a.known_tiles * static_cast<int>(gridDim.z);
  if (block < known) return {block % a.known_tiles, block / a.known_tiles};
  block -= known;
  const int others = static_cast<int>(gridDim.y) - a.known_tiles;
  return {a.known_tiles + block % others, block / others};
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    stream(const StreamArgs a, const __grid_constant__ CUtensorMap weight_map,
           const __grid_constant__ CUtensorMap x_map) {
  extern __shared__ __align__(1024) char shared[];
  const GridTile tile = find_tile(a);
  StreamBlock<Tile> block{.a = a, .shared = shared, .output_tile = tile.outputs};
  const bool dense = a.groups.offsets == nullptr;
  // Blocks of a known group wait where the others end.
  const bool known = tile.rows < a.known_tiles;
  if (known) {
    const int tiles = (a.groups.known_rows + Tile::kN - 1) / Tile::kN, group = tile.rows / tiles;
    block.known_x = (tile.rows - group * tiles) * Tile::kN;
    block.rows = {a.groups.weight_of(group), group * a.groups.known_rows + block.known_x,
                  min(Tile::kN, a.groups.known_rows - block.known_x)};
  }
  // Blocks that may run beside the previous kernel. The others start when one of these has ended, and so the
  // previous kernel: their wait returns at once, and after it any load of the offsets is right.
  const bool early = a.groups.settled && blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z) <
                                             static_cast<unsigned>(a.first_blocks);
  if (dense) troupe::cuda::let_next_start();
  if (block.warp == Tile::kWarps) {
    if (block.lane == 0) {
      const int of_x = Tile::kWholeX ? 0 : a.groups.gather != nullptr ? 32 : kBoxArrivals;
#pragma unroll 1
      for (int s = 0; s < a.stages; ++s) {
        ptx::mbarrier_init(block.full + 8 * s, kBoxArrivals + of_x);
        ptx::mbarrier_init(block.empty + 8 * s, Tile::kWarps);
      }
      ptx::mbarrier_init(block.got, 1);
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
    if (dense || known) block.fill_ring(&weight_map);
  } else if (early && block.warp == 0) {
    const RowTile rows = find_rows<true>(a.groups.offsets, a.groups.count, a.rows, Tile::kN, tile.rows);
    if (block.lane == 0) *block.settled_rows() = rows;
  }
  __syncthreads();
  if (!dense && !known) {
    if (!early) troupe::cuda::wait_for_previous();
    troupe::cuda::let_next_start();  // not earlier: this kernel holds the next one, if it is not settled
  }
  if (!known) {
    block.rows = early ? *block.settled_rows()
                       : find_rows(a.groups.offsets, a.groups.count, a.rows, Tile::kN, tile.rows);
    block.rows.group = a.groups.weight_of(block.rows.group);
  }
  if (block.rows.count <= 0) return troupe::cuda::wait_for_previous();
  if (a.cluster > 1) {
    if (threadIdx.x == 0)
      ptx::mbarrier_arrive_expect(block.got, a.cluster * block.slice * block.rows.count * 4);
    ptx::warp_cluster_arrive_relaxed();
  }

  if (block.warp == Tile::kWarps) {
    if (!dense && !known) block.fill_ring(&weight_map);
    if constexpr (Tile::kWholeX) block.refill_ring(&weight_map);
    if (!known) troupe::cuda::wait_for_previous();
    if constexpr (!Tile::kWholeX) block.refill_ring_with_x(&weight_map, &x_map);
    if (known) troupe::cuda::wait_for_previous();
    if (a.cluster > 1) ptx::warp_cluster_wait();
    return;
  }
  WholeX whole;
  if constexpr (Tile::kWholeX) whole = place_whole_x(block);
  const auto operands = block.place_operands();
  const auto destination = block.place_sums();
  const auto first = block.mine(static_cast<int>(threadIdx.x));
  Four<typename Tile::T> four(a.ending, first.p, first.o);
  const auto scales = first.there ? block.output_scales(first.o) : typename StreamBlock<Tile>::OutputScales{};
  const auto lines = read_lines(block);
  if constexpr (Tile::Codes::kBlockScales) bring_weight_scales(block);
  if (!known) troupe::cuda::wait_for_previous();
  if constexpr (Tile::Codes::kBlockScales) bring_x_scales(block);
  if constexpr (Tile::kWholeX) bring_whole_x(block, whole);
  if (first.there) four.read();
  typename StreamBlock<Tile>::Sums sums;
  block.multiply(sums, operands, lines);
  block.hand_over(sums, destination);
  if (block.m_first < Tile::kM) block.finish(first, four, scales);
  if (known) troupe::cuda::wait_for_previous();
}

constexpr std::size_t kTiles = std::size(kStreamTiles);

/// The tiles of a CodeKind lie one after the other.
constexpr auto kRows = make_table<kCodeKinds * kTiles>([](auto row) {
  constexpr int kKind = row / static_cast<int>(kTiles);
  constexpr StreamTileSize kSize = kStreamTiles[row % static_cast<int>(kTiles)];
  if constexpr (has_stream_kernel(static_cast<CodeKind>(kKind), kSize)) {
    using Kind = MultipliedAt<kKind>;
    using Tile = StreamTile<typename Kind::T, typename Kind::Codes, kSize.outputs, kSize.rows, 4,
                            kSize.rows == 64 ? 2 : 1>;
    return StreamRow{stream<Tile>, Tile::kThreads};
  } else {
    return StreamRow{};
  }
});

/// Blocks of the plan that a multiprocessor runs together, at most.
int blocks_together(const StreamPlan& plan) { return std::max(1, (228 << 10) / (plan.shared_bytes + 1024)); }

}  // namespace

void streaming::launch_stream(Cuda& device, const Linear& linear, const StreamPlan& plan,
                              const StreamRow& row) {
  const Matrix& weight = linear.weight;
  const bool fp8 = weight.format.fp8(), whole_x = plan.tile_rows == 8;
  const int x_row_bytes = fp8 ? coded_stride(weight.inputs) : row_stride(weight.inputs) * 2;
  const auto* x = static_cast<const char*>(fp8 ? linear.x_codes : linear.x);
  const bool grouped = linear.groups.offsets != nullptr, wint2 = weight.format.kind == WeightKind::wint2;
  const int known_tiles = (linear.groups.known_rows + plan.tile_rows - 1) / plan.tile_rows;
  const std::size_t scales_at = weight_bytes(weight.format, weight.outputs, weight.inputs);
  const StreamArgs a{.weight = static_cast<const char*>(weight.data),
                     .x = x,
                     .x_scales = linear.x_scales,
                     .row_bytes = static_cast<std::size_t>(row_bytes(weight.format, weight.inputs)),
                     .x_row_bytes = static_cast<std::size_t>(x_row_bytes),
                     .scales_at = scales_at,
                     .groups_at = scales_at + (wint2 ? wint2_groups_at(padded(weight.outputs)) : 0),
                     .chunks = chunks_of(row_bytes(weight.format, weight.inputs)),
                     .rows = linear.rows,
                     .boxes = plan.boxes,
                     .scale_group = scale_line_inputs(weight.format),
                     .block_boxes = plan.block_boxes,
                     .stages = plan.stages,
                     .cluster = plan.cluster,
                     .shared_bytes = plan.shared_bytes,
                     .first_blocks = device.multiprocessors() * blocks_together(plan),
                     .known_tiles = linear.groups.known * known_tiles,
                     .groups = linear.groups,
                     .ending = ending_of(linear)};
  CUtensorMap weight_map{}, x_map{};
  if (device.capability() >= 90) {  // its code may have the copy engine, whatever choosers are told
    const auto map = [&](const void* data, std::size_t row_bytes, int rows, int groups, std::size_t stride,
                         int box_rows) {
      return troupe::cuda::tensor_map(
          {.data = data,
           .dtype = weight.activations(),
           .sizes = {row_bytes / 2, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(groups)},
           .strides = {row_bytes, stride},
           .box = {kRowBytes / 2, static_cast<std::uint32_t>(box_rows), 1}});
    };
    weight_map = map(weight.data, a.row_bytes, a.ending.outputs, grouped ? linear.groups.count : 1,
                     grouped ? linear.groups.weight_stride : a.row_bytes, plan.outputs);
    if (!whole_x && linear.groups.gather == nullptr)
      x_map = map(x, a.x_row_bytes, linear.rows, 1, a.x_row_bytes, plan.tile_rows);
  }
  const void* settled = linear.groups.settled ? linear.groups.offsets : nullptr;
  if (linear.groups.known > 0) settled = x;
  launch(device, row, launch_size(shape_of(linear), plan),
         {.holds_next = grouped && !linear.groups.settled,
          .reads_constant = !grouped || linear.groups.settled ? weight.data : nullptr,
          .reads_settled = settled},
         a, weight_map, x_map);
}

void run_stream(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  if (linear.rows <= 0) return;
  if (plan.many_rows) return run_tiles(device, linear, plan);
  const std::size_t tile = index_of(kStreamTiles, {plan.outputs, plan.tile_rows});
  const auto kind = static_cast<std::size_t>(code_kind(linear.weight.format));
  launch_stream(device, linear, plan, kRows[kind * kTiles + tile]);
}

std::vector<CompiledKernel> stream_kernels() { return compiled_of(kRows); }

}  // namespace troupe::kernels::cuda
