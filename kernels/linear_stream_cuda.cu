// Launching the streaming products. How they are cut: kernels/cuda/product/stream.h; how a block works:
// stream_block.cuh.
#include "base/check.h"
#include "kernels/cuda/product/stream_launch.cuh"
#include "kernels/cuda/product/stream_resident.cuh"

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

template <class Tile>
void launch_tiles(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  launch_stream<Tile>(device, linear, plan, stream<Tile>);
}

template <class T, class Codes, int kM>
void start_tiles(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  switch (plan.tile_rows) {
    case 16: return launch_tiles<StreamTile<T, Codes, kM, 16, 4, 1>>(device, linear, plan);
    default: return launch_tiles<StreamTile<T, Codes, kM, 32, 4, 1>>(device, linear, plan);
  }
}

template <class T, class Codes>
void start(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  if constexpr (Codes::kOperands > 1) {
    if (plan.outputs == kWideOutputs) return start_tiles<T, Codes, kWideOutputs>(device, linear, plan);
  }
  TROUPE_CHECK(plan.outputs == kOutputs);
  switch (plan.tile_rows) {
    case 8: return launch_tiles<StreamTile<T, Codes, kOutputs, 8, 4, 1>>(device, linear, plan);
    case 64:
      if constexpr (!Codes::kLines)  // experts alone are wint2
        return launch_tiles<StreamTile<T, Codes, kOutputs, 64, 4, 2>>(device, linear, plan);
      [[fallthrough]];
    default: return start_tiles<T, Codes, kOutputs>(device, linear, plan);
  }
}

}  // namespace

void run_stream(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  if (linear.rows <= 0) return;
  if (plan.many_rows) return run_tiles(device, linear, plan);
  if (linear.weight.format.fp8()) return start<Bf16, Fp8Codes>(device, linear, plan);
  if (linear.weight.activations() == DType::f16) return start<F16, PlainCodes>(device, linear, plan);
  TROUPE_CHECK(with_codes(linear.weight.format,
                          [&](auto codes) { start<Bf16, decltype(codes)>(device, linear, plan); }));
}

}  // namespace troupe::kernels::cuda
