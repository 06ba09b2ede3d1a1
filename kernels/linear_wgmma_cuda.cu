// Products of many rows on Hopper. Which shape of tiles: kernels/cuda/product/wgmma.h; the kernel:
// wgmma_product.cuh.
#include <cstdint>

#include "kernels/cuda/product/wgmma_launch.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/quantise_rows.h"

namespace troupe::kernels::cuda {
namespace {

constexpr auto kRows = wgmma_table<WgmmaScales::none>();
constexpr WgmmaTile kF16Tile = kWgmmaTiles[kWgmmaF16Tile];
constexpr WgmmaRow kF16Rows[] = {
    wgmma_row<F16, TileShape<kF16Tile.rows, kF16Tile.columns, kF16Tile.cluster>>()};

}  // namespace

void launch_wgmma(Cuda& device, const Linear& linear, int tile, const WgmmaRow& row,
                  const ExpandedWeights* expanded) {
  const WgmmaTile& shape = kWgmmaTiles[tile];
  const Matrix& weight = linear.weight;
  const Groups& groups = linear.groups;
  const bool fp8 = weight.format.fp8(), grouped = groups.offsets != nullptr;
  const auto x_row_bytes =
      static_cast<std::uint64_t>(fp8 ? coded_stride(weight.inputs) : padded(weight.inputs) * 2);
  const void* x = fp8 ? linear.x_codes : linear.x;
  const auto weight_row_bytes = static_cast<std::uint64_t>(row_bytes(weight.format, weight.inputs));
  const int count = grouped ? groups.count : 1;
  const CUtensorMap weight_map =
      tensor_map({.data = weight.data,
                  .dtype = weight.activations(),
                  .sizes = {weight_row_bytes / 2, static_cast<std::uint64_t>(weight.outputs),
                            static_cast<std::uint64_t>(count)},
                  .strides = {weight_row_bytes, count > 1 ? groups.weight_stride : weight_row_bytes},
                  .box = {kWgmmaStepInputs, static_cast<std::uint32_t>(shape.columns), 1}});
  const CUtensorMap x_map =
      groups.gather != nullptr
          ? weight_map  // unused
          : tensor_map({.data = x,
                        .dtype = weight.activations(),
                        .sizes = {x_row_bytes / 2, static_cast<std::uint64_t>(linear.rows), 1},
                        .strides = {x_row_bytes, x_row_bytes},
                        .box = {kWgmmaStepInputs, static_cast<std::uint32_t>(shape.rows), 1}});
  Product product{.offsets = groups.offsets,
                  .gather = groups.gather,
                  .groups = count,
                  .rows = linear.rows,
                  .steps = wgmma_steps(weight.format, weight.inputs),
                  .row_chunks = static_cast<int>(x_row_bytes / 16),
                  .x = x,
                  .x_scales = linear.x_scales};
  if (expanded != nullptr) {
    product.scales = expanded->scales;
    product.scales_stride = expanded->scales_stride;
    product.constant_weights = false;
  }
  if (fp8) {
    product.scales = static_cast<const char*>(scales_of(weight));
    product.scales_stride = groups.weight_stride;
  }
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
                    .slots = linear.slots,
                    .bias = linear.bias,
                    .bias_ending = linear.bias_ending};
  const int width = linear.ending == Ending::swiglu ? weight.outputs / 2
                    : linear.ending == Ending::qkv  ? linear.heads * linear.kv.head_dim
                                                    : weight.outputs;
  product.finish.stride = static_cast<std::size_t>(padded(width));
  launch(
      device, row, wgmma_size(shape_of(linear), shape, device.multiprocessors()),
      {.holds_next = grouped, .reads_constant = !grouped && product.constant_weights ? weight.data : nullptr},
      x_map, weight_map, product);
}

void run_wgmma(Cuda& device, const Linear& linear, int tile, const ExpandedWeights* expanded) {
  launch_wgmma(device, linear, tile, kRows[static_cast<std::size_t>(tile)], expanded);
}

void run_wgmma(Cuda& device, const Linear& linear, int tile) {
  if (linear.rows <= 0) return;
  if (linear.weight.format.fp8()) return run_wgmma_fp8(device, linear, tile);
  if (linear.weight.activations() == DType::f16)
    return launch_wgmma(device, linear, kWgmmaF16Tile, kF16Rows[0]);
  run_wgmma(device, linear, tile, nullptr);
}

std::vector<CompiledKernel> wgmma_kernels() { return compiled_of(kRows, kF16Rows); }

}  // namespace troupe::kernels::cuda
