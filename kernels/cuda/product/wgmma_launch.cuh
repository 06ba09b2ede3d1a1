#pragma once
// Launching a product of many rows on Hopper.
#include <cuda.h>

#include "kernels/cuda/product/kernel_row.cuh"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/product/wgmma_product.cuh"

namespace troupe::kernels::cuda {

/// It takes the tensor maps of x and of the weights.
using WgmmaRow = KernelRow<CUtensorMap, CUtensorMap, Product>;

template <class T, class Shape>
constexpr WgmmaRow wgmma_row() {
  return {product_kernel<T, Shape>, kThreads, Shape::kSharedBytes};
}
/// Of kWgmmaTiles, in their order.
template <WgmmaScales kScales>
constexpr auto wgmma_table() {
  return make_table<std::size(kWgmmaTiles)>([](auto index) {
    constexpr WgmmaTile kTile = kWgmmaTiles[index];
    if constexpr (is_compiled(kTile, kScales)) {
      return wgmma_row<Bf16, TileShape<kTile.rows, kTile.columns, kTile.cluster, kScales>>();
    } else {
      return WgmmaRow{};
    }
  });
}

/// Of weights that were expanded: the scales of their sums, and that a kernel of the step wrote them.
struct ExpandedWeights {
  const char* scales = nullptr;
  std::size_t scales_stride = 0;
};

/// Launches a kernel whose tiles are kWgmmaTiles[tile].
void launch_wgmma(Cuda& device, const Linear& linear, int tile, const WgmmaRow& row,
                  const ExpandedWeights* expanded = nullptr);
/// run_wgmma() of bf16 weights that were expanded and whose outputs have no scales.
void run_wgmma(Cuda& device, const Linear& linear, int tile, const ExpandedWeights* expanded);

}  // namespace troupe::kernels::cuda
