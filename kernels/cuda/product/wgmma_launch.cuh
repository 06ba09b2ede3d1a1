#pragma once
// Launching a product of many rows on Hopper with one shape of tiles.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/product/wgmma_product.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/quantise_rows.h"

namespace troupe::kernels::cuda {

/// Of weights that were expanded: the scales of their sums, and that a kernel of the step wrote them.
struct ExpandedWeights {
  const char* scales = nullptr;
  std::size_t scales_stride = 0;
};

template <class T, class Shape>
void launch_product(Cuda& device, const Linear& linear, const ExpandedWeights* expanded = nullptr) {
  const Matrix& weight = linear.weight;
  const Groups& groups = linear.groups;
  const auto x_row_bytes = static_cast<std::uint64_t>(Shape::kFp8 ? coded_stride(weight.inputs)
                                                                  : padded(weight.inputs) * int(sizeof(T)));
  const void* x = Shape::kFp8 ? linear.x_codes : linear.x;
  const auto weight_row_bytes = static_cast<std::uint64_t>(row_bytes(weight.format, weight.inputs));
  const bool grouped = groups.offsets != nullptr;
  const int count = grouped ? groups.count : 1;
  const CUtensorMap weight_map =
      tensor_map({.data = weight.data,
                  .dtype = weight.activations(),
                  .sizes = {weight_row_bytes / 2, static_cast<std::uint64_t>(weight.outputs),
                            static_cast<std::uint64_t>(count)},
                  .strides = {weight_row_bytes, count > 1 ? groups.weight_stride : weight_row_bytes},
                  .box = {kWgmmaStepInputs, Shape::kColumns, 1}});
  const CUtensorMap x_map =
      groups.gather != nullptr
          ? weight_map  // unused
          : tensor_map({.data = x,
                        .dtype = weight.activations(),
                        .sizes = {x_row_bytes / 2, static_cast<std::uint64_t>(linear.rows), 1},
                        .strides = {x_row_bytes, x_row_bytes},
                        .box = {kWgmmaStepInputs, Shape::kRows, 1}});
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
  if (Shape::kFp8) {
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
          .overlap = {.holds_next = grouped,
                      .reads_constant =
                          product.offsets == nullptr && product.constant_weights ? weight.data : nullptr}},
         x_map, weight_map, product);
}

}  // namespace troupe::kernels::cuda
