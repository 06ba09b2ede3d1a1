// Products of many rows with fp8 weights on Hopper: codes of x times codes of weights (wgmma_product.cuh).
#include <iterator>
#include <utility>

#include "kernels/cuda/product/wgmma_launch.cuh"

namespace troupe::kernels::cuda {
namespace {

/// True if each 128 columns of the product have two scales: of gate|up one for the gates and one for the ups,
/// else the same for all. That is so where blocks of 128 outputs begin at multiples of 128.
bool scales_in_pairs(const Linear& linear) {
  switch (linear.ending) {
    case Ending::qkv:
      return linear.heads * linear.kv.head_dim % kFp8Block == 0 &&
             linear.kv.kv_heads * linear.kv.head_dim % kFp8Block == 0;
    case Ending::swiglu: return linear.weight.outputs / 2 % kFp8Block == 0;
    default: return true;
  }
}

template <std::size_t kTile, WgmmaScales kScales>
void launch_fp8_at(Cuda& device, const Linear& linear) {
  constexpr WgmmaTile kAt = kWgmmaTiles[kTile];
  if constexpr (kAt.fp8)
    launch_product<Bf16, TileShape<kAt.rows, kAt.columns, kAt.cluster, kScales>>(device, linear);
}

template <WgmmaScales kScales, std::size_t... kTile>
void launch_fp8_tile(Cuda& device, const Linear& linear, int tile, std::index_sequence<kTile...>) {
  ((tile == static_cast<int>(kTile) ? launch_fp8_at<kTile, kScales>(device, linear) : void()), ...);
}

}  // namespace

void run_wgmma_fp8(Cuda& device, const Linear& linear, int tile) {
  constexpr auto kTiles = std::make_index_sequence<std::size(kWgmmaTiles)>();
  if (scales_in_pairs(linear)) {
    launch_fp8_tile<WgmmaScales::pairs>(device, linear, tile, kTiles);
  } else {
    launch_fp8_tile<WgmmaScales::blocks>(device, linear, tile, kTiles);
  }
}

}  // namespace troupe::kernels::cuda
