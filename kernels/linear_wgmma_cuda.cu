// Products of many rows on Hopper. Which shape of tiles: kernels/cuda/product/wgmma.h; the kernel:
// wgmma_product.cuh.
#include <iterator>
#include <utility>

#include "kernels/cuda/product/wgmma_launch.cuh"

namespace troupe::kernels::cuda {
namespace {

template <std::size_t kIndex>
using TileShapeAt =
    TileShape<kWgmmaTiles[kIndex].rows, kWgmmaTiles[kIndex].columns, kWgmmaTiles[kIndex].cluster>;

template <class T, std::size_t... kIndex>
void launch_tile(Cuda& device, const Linear& linear, int tile, std::index_sequence<kIndex...>) {
  ((tile == static_cast<int>(kIndex) ? launch_product<T, TileShapeAt<kIndex>>(device, linear) : void()), ...);
}

}  // namespace

void run_wgmma(Cuda& device, const Linear& linear, int tile) {
  if (linear.rows <= 0) return;
  if (linear.weight.activations() == DType::f16)
    return launch_product<F16, TileShapeAt<kWgmmaF16Tile>>(device, linear);
  launch_tile<Bf16>(device, linear, tile, std::make_index_sequence<std::size(kWgmmaTiles)>());
}

}  // namespace troupe::kernels::cuda
