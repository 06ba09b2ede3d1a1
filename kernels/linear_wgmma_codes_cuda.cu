// Products of many rows on Hopper whose weights are codes.
#include <iterator>

#include "base/check.h"
#include "kernels/cuda/product/wgmma_launch.cuh"

namespace troupe::kernels::cuda {
namespace {

template <class Codes, int kTile>
bool launch_if(Cuda& device, const Linear& linear, int tile) {
  constexpr WgmmaTile kShape = kWgmmaTiles[kTile];
  if constexpr (!kShape.codes) return false;
  if (tile != kTile) return false;
  if constexpr (kShape.codes)
    launch_product<Bf16, TileShape<kShape.rows, kShape.columns, kShape.cluster, Codes>>(device, linear);
  return true;
}

template <class Codes, std::size_t... kTile>
bool launch_tile(Cuda& device, const Linear& linear, int tile, std::index_sequence<kTile...>) {
  return (launch_if<Codes, static_cast<int>(kTile)>(device, linear, tile) || ...);
}

}  // namespace

void run_wgmma_codes(Cuda& device, const Linear& linear, int tile) {
  bool launched = false;
  with_codes(linear.weight.format, [&](auto codes) {
    using Codes = decltype(codes);
    if constexpr (Codes::kOperands > 1)
      launched = launch_tile<Codes>(device, linear, tile, std::make_index_sequence<std::size(kWgmmaTiles)>());
  });
  TROUPE_CHECK(launched);
}

}  // namespace troupe::kernels::cuda
