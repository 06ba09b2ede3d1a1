#pragma once
// What the launches of streaming products have in common: arguments, tensor maps, the grid.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/stream.h"
#include "kernels/cuda/product/stream_block.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/quantise_rows.h"

namespace troupe::kernels::cuda::streaming {

/// Blocks of the plan that a multiprocessor runs together, at most.
inline int blocks_together(const StreamPlan& plan) {
  return std::max(1, (228 << 10) / (plan.shared_bytes + 1024));
}

/// Launches a kernel that multiplies by StreamBlock<Tile> and takes its arguments and the tensor maps of the
/// weights and of x.
template <class Tile>
void launch_stream(Cuda& device, const Linear& linear, const StreamPlan& plan,
                   void (*kernel)(StreamArgs, CUtensorMap, CUtensorMap)) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  const Matrix& weight = linear.weight;
  constexpr bool kFp8 = Tile::Codes::kBlockScales;
  const int x_row_bytes = kFp8 ? coded_stride(weight.inputs) : row_stride(weight.inputs) * 2;
  const auto* x = static_cast<const char*>(kFp8 ? linear.x_codes : linear.x);
  const bool grouped = linear.groups.offsets != nullptr;
  const StreamArgs a{.weight = static_cast<const char*>(weight.data),
                     .x = x,
                     .x_scales = linear.x_scales,
                     .row_bytes = static_cast<std::size_t>(row_bytes(weight.format, weight.inputs)),
                     .x_row_bytes = static_cast<std::size_t>(x_row_bytes),
                     .scales_at = weight_bytes(weight.format, weight.outputs, weight.inputs),
                     .groups_at = weight_bytes(weight.format, weight.outputs, weight.inputs) +
                                  (Tile::Codes::kLines ? wint2_groups_at(padded(weight.outputs)) : 0),
                     .chunks = chunks_of(row_bytes(weight.format, weight.inputs)),
                     .rows = linear.rows,
                     .boxes = plan.boxes,
                     .scale_group = scale_line_inputs(weight.format),
                     .block_boxes = plan.block_boxes,
                     .stages = plan.stages,
                     .cluster = plan.cluster,
                     .shared_bytes = plan.shared_bytes,
                     .first_blocks = device.multiprocessors() * blocks_together(plan),
                     .known_tiles = linear.groups.known * ((linear.groups.known_rows + kN - 1) / kN),
                     .groups = linear.groups,
                     .ending = ending_of(linear)};
  CUtensorMap weight_map{}, x_map{};
  if (device.capability() >= 90) {  // its code may have the copy engine, whatever choosers are told
    const auto map = [&](const void* data, std::size_t row_bytes, int rows, int groups, std::size_t stride,
                         std::uint32_t box_rows) {
      return troupe::cuda::tensor_map(
          {.data = data,
           .dtype = weight.activations(),
           .sizes = {row_bytes / 2, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(groups)},
           .strides = {row_bytes, stride},
           .box = {kRowBytes / 2, box_rows, 1}});
    };
    weight_map = map(weight.data, a.row_bytes, a.ending.outputs, grouped ? linear.groups.count : 1,
                     grouped ? linear.groups.weight_stride : a.row_bytes, kM);
    if (!Tile::kWholeX && linear.groups.gather == nullptr)
      x_map = map(x, a.x_row_bytes, linear.rows, 1, a.x_row_bytes, kN);
  }
  const void* settled = linear.groups.settled ? linear.groups.offsets : nullptr;
  if (linear.groups.known > 0) settled = x;
  const troupe::cuda::Shape shape{
      .grid = dim3(static_cast<unsigned>(plan.cluster), static_cast<unsigned>(most_row_tiles(linear, kN)),
                   static_cast<unsigned>((a.ending.outputs + kM - 1) / kM)),
      .block = dim3(Tile::kThreads),
      .shared_bytes = static_cast<std::size_t>(plan.shared_bytes),
      .cluster = plan.cluster,
      .overlap = {.holds_next = grouped && !linear.groups.settled,
                  .reads_constant = !grouped || linear.groups.settled ? weight.data : nullptr,
                  .reads_settled = settled}};
  troupe::cuda::allow_shared(kernel, shape.shared_bytes);
  troupe::cuda::launch(device, kernel, shape, a, weight_map, x_map);
}

}  // namespace troupe::kernels::cuda::streaming
