// Launching the slab products. How they are cut: kernels/cuda/product/slab.h; how a block works:
// slab_block.cuh.
#include <iterator>
#include <utility>

#include "kernels/cuda/product/kernel_row.cuh"
#include "kernels/cuda/product/slab_block.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace troupe::kernels::cuda {
namespace {

using namespace slabs;

template <int kIndex>
__global__ void __launch_bounds__(kSlabThreads + 32, 2)
    slab_kernel(const SlabArgs a, const __grid_constant__ CUtensorMap weight_map) {
  using Block = Slab<kSlabKernels[kIndex]>;
  extern __shared__ __align__(1024) char shared[];
  troupe::cuda::let_next_start();
  const Block slab{.a = a, .shared = ptx::shared_address(shared)};
  if (slab.first_output >= a.ending.outputs) return troupe::cuda::wait_for_previous();
  const bool fetches = slab.warp == kSlabThreads / 32, multiplies = slab.warp < kSlabMultiplyingWarps;
  if (fetches && slab.lane == 0) slab.init_barriers();
  __syncthreads();
  ptx::warp_cluster_arrive_relaxed();
  if (fetches) {
    slab.fetch_weights(&weight_map);
    ptx::warp_cluster_wait();
    troupe::cuda::wait_for_previous();
    if (a.inbox_overwrites_inputs) {
      ptx::warp_cluster_arrive_relaxed();
      ptx::warp_cluster_wait();
    }
    return;
  }
  EndingArgs ending = a.ending;
  ending.ending = kSlabKernels[kIndex].ending;  // a constant for the compiler
  const typename Block::X x = slab.place_x();
  const typename Block::Destination destination = slab.place_sums();
  typename Block::Items items =
      slab.place_items(ending, std::make_integer_sequence<int, Block::Shape::kPasses>());
  ptx::warp_cluster_wait();  // all blocks have begun: they may be sent to
  troupe::cuda::wait_for_previous(a.rows < 0);
  multiplies ? slab.template run<true>(x, destination, items)
             : slab.template run<false>(x, destination, items);
  ptx::mbarrier_wait(slab.got, 0);
  slab.finish(items);
}

/// Of kSlabKernels, in their order.
constexpr auto kRows = make_table<std::size(kSlabKernels)>([](auto row) {
  return KernelRow<SlabArgs, CUtensorMap>{slab_kernel<row>, kSlabThreads + 32};
});

}  // namespace

void run_slabs(Cuda& device, const Linear& linear, const SlabPlan& plan) {
  const SlabKernel& kernel = plan.kernel;
  const int stride = row_stride(linear.weight.inputs);
  const HalvedNorm& consumed = linear.consumed_norm;
  const int box_bytes = kernel.outputs * kSlabRowBytes;
  SlabArgs a{.x = static_cast<const char*>(kernel.consumes_halved_norm ? consumed.weighted : linear.x),
             .squares = consumed.squares,
             .square_sums = slab_square_sums(consumed.cols),
             .eps = consumed.eps,
             .stride = stride,
             .rows = linear.rows,
             .chunks = (stride + kSlabChunkInputs - 1) / kSlabChunkInputs,
             .block_chunks = plan.block_chunks,
             .copy_interval_cycles = static_cast<unsigned>(box_bytes * plan.copy_interval_cycles / 1024),
             .weights_offset = plan.weights_offset,
             .inbox_offset = plan.inbox_offset,
             .barriers_offset = plan.barriers_offset,
             .inbox_overwrites_inputs = plan.inbox_overwrites_inputs,
             .ending = ending_of(linear),
             .produced_norm = linear.produced_norm};
  if (kernel.consumes_halved_norm) a.inverse_cols = 1.0f / static_cast<float>(consumed.cols);
  const auto row_elements = static_cast<std::uint64_t>(stride);
  const CUtensorMap weight_map =
      troupe::cuda::tensor_map({.data = linear.weight.data,
                                .sizes = {row_elements, static_cast<std::uint64_t>(a.ending.outputs), 1},
                                .strides = {row_elements * 2, row_elements * 2},
                                .box = {kSlabChunkInputs, static_cast<std::uint32_t>(kernel.outputs), 1}});
  launch(device, kRows[index_of(kSlabKernels, kernel)], launch_size(plan),
         {.reads_constant = linear.weight.data}, a, weight_map);
}

std::vector<CompiledKernel> slab_kernels() { return compiled_of(kRows); }

}  // namespace troupe::kernels::cuda
