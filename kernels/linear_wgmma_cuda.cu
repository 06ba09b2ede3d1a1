// Products of many rows on Hopper. Which shape of tiles: kernels/cuda/product/wgmma.h; the kernel:
// wgmma_product.cuh.
#include <iterator>
#include <utility>

#include "kernels/cuda/product/wgmma_launch.cuh"

namespace troupe::kernels::cuda {
namespace {

template <class T, std::size_t kTile>
void launch_at(Cuda& device, const Linear& linear) {
  constexpr WgmmaTile kAt = kWgmmaTiles[kTile];
  if constexpr (!kAt.fp8) launch_product<T, TileShape<kAt.rows, kAt.columns, kAt.cluster>>(device, linear);
}

template <std::size_t... kTile>
void launch_tile(Cuda& device, const Linear& linear, int tile, std::index_sequence<kTile...>) {
  ((tile == static_cast<int>(kTile) ? launch_at<Bf16, kTile>(device, linear) : void()), ...);
}

}  // namespace

void run_wgmma(Cuda& device, const Linear& linear, int tile) {
  if (linear.rows <= 0) return;
  if (linear.weight.format.fp8()) return run_wgmma_fp8(device, linear, tile);
  if (linear.weight.activations() == DType::f16) return launch_at<F16, kWgmmaF16Tile>(device, linear);
  launch_tile(device, linear, tile, std::make_index_sequence<std::size(kWgmmaTiles)>());
}

}  // namespace troupe::kernels::cuda
