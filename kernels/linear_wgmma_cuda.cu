// Launching products of many rows on Hopper. Which shape of tiles: kernels/cuda/product/wgmma.h; the kernel:
// wgmma_product.cuh.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/product/wgmma_product.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace troupe::kernels::cuda {
namespace {

template <class T, class Shape>
void launch_product(Cuda& device, const Linear& linear) {
  const Matrix& weight = linear.weight;
  const Groups& groups = linear.groups;
  const auto row_bytes = static_cast<std::uint64_t>(padded(weight.inputs)) * sizeof(T);
  const bool grouped = groups.offsets != nullptr;
  const int count = grouped ? groups.count : 1;
  const CUtensorMap weight_map =
      tensor_map({.data = weight.data,
                  .dtype = weight.activations(),
                  .sizes = {static_cast<std::uint64_t>(padded(weight.inputs)),
                            static_cast<std::uint64_t>(weight.outputs), static_cast<std::uint64_t>(count)},
                  .strides = {row_bytes, count > 1 ? groups.weight_stride : row_bytes},
                  .box = {kWgmmaStepInputs, Shape::kColumns, 1}});
  const CUtensorMap x_map = groups.gather != nullptr
                                ? weight_map  // unused
                                : tensor_map({.data = linear.x,
                                              .dtype = weight.activations(),
                                              .sizes = {static_cast<std::uint64_t>(padded(weight.inputs)),
                                                        static_cast<std::uint64_t>(linear.rows), 1},
                                              .strides = {row_bytes, row_bytes},
                                              .box = {kWgmmaStepInputs, Shape::kRows, 1}});
  Product product{.offsets = groups.offsets,
                  .gather = groups.gather,
                  .groups = count,
                  .rows = linear.rows,
                  .steps = wgmma_steps(weight.inputs),
                  .row_chunks = static_cast<int>(row_bytes / 16),
                  .x = linear.x};
  product.finish = {.ending = linear.ending,
                    .outputs = weight.outputs,
                    .columns = padded(weight.outputs),
                    .out = linear.out,
                    .scale = linear.scale,
                    .q = linear.q,
                    .rope = linear.rope,
                    .kv = linear.kv,
                    .layer = linear.layer,
                    .heads = linear.heads,
                    .slots = linear.slots};
  const int width = linear.ending == Ending::swiglu ? weight.outputs / 2
                    : linear.ending == Ending::qkv  ? linear.heads * linear.kv.head_dim
                                                    : weight.outputs;
  product.finish.stride = static_cast<std::size_t>(padded(width));

  const long long row_tiles =
      grouped ? linear.rows / Shape::kRows + count : (linear.rows + Shape::kRows - 1) / Shape::kRows;
  const long long tiles = row_tiles * ((product.finish.columns + Shape::kColumns - 1) / Shape::kColumns);
  const long long blocks =
      Shape::kSplit > 1 ? tiles * Shape::kSplit : std::min<long long>(tiles, device.multiprocessors());
  const auto kernel = product_kernel<T, Shape>;
  allow_shared(kernel, Shape::kSharedBytes);
  launch(device, kernel,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(kThreads),
          .shared_bytes = Shape::kSharedBytes,
          .cluster = Shape::kSplit,
          .overlap = {.holds_next = grouped, .reads_constant = grouped ? nullptr : weight.data}},
         x_map, weight_map, product);
}

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
