// Products of many rows with fp8 weights on Hopper: codes of x times codes of weights (wgmma_product.cuh).
#include "kernels/cuda/product/wgmma_launch.cuh"

namespace troupe::kernels::cuda {
namespace {

constexpr auto kPairRows = wgmma_table<WgmmaScales::pairs>();
constexpr auto kBlockRows = wgmma_table<WgmmaScales::blocks>();

}  // namespace

void run_wgmma_fp8(Cuda& device, const Linear& linear, int tile) {
  const auto& rows = wgmma_scales(shape_of(linear)) == WgmmaScales::pairs ? kPairRows : kBlockRows;
  launch_wgmma(device, linear, tile, rows[static_cast<std::size_t>(tile)]);
}

std::vector<CompiledKernel> wgmma_fp8_kernels() { return compiled_of(kPairRows, kBlockRows); }

}  // namespace troupe::kernels::cuda
