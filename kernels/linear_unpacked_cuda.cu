// Launching products of experts whose codes are unpacked in registers. How a block works:
// kernels/cuda/product/unpacked_product.cuh.
#include <bit>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/kernel_row.cuh"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/product/unpacked_product.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace troupe::kernels::cuda {
namespace {

constexpr int kInterleaveThreads = 256;

/// A thread for each 32 elements.
__global__ void __launch_bounds__(kInterleaveThreads)
    interleave_kernel(const uint4* x, uint4* to, std::size_t blocks_of_32) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kInterleaveThreads + threadIdx.x;
  if (i >= blocks_of_32) return;
  const uint4 a = x[4 * i], b = x[4 * i + 1], c = x[4 * i + 2], d = x[4 * i + 3];
  to[4 * i] = make_uint4(a.x, b.x, c.x, d.x);
  to[4 * i + 1] = make_uint4(a.y, b.y, c.y, d.y);
  to[4 * i + 2] = make_uint4(a.z, b.z, c.z, d.z);
  to[4 * i + 3] = make_uint4(a.w, b.w, c.w, d.w);
}

const void* interleaved_x(Cuda& device, const Linear& linear) {
  const int rows = linear.groups.gather != nullptr ? linear.x_rows : linear.rows;
  TROUPE_CHECK(rows > 0);
  const std::size_t bytes = interleaved_bytes(rows, linear.weight.inputs), blocks_of_32 = bytes / 64;
  void* x = linear.working_memory != nullptr ? linear.working_memory : device.scratch(bytes);
  troupe::cuda::launch(
      device, interleave_kernel,
      {.grid = dim3(static_cast<unsigned>((blocks_of_32 + kInterleaveThreads - 1) / kInterleaveThreads)),
       .block = kInterleaveThreads},
      static_cast<const uint4*>(linear.x), static_cast<uint4*>(x), blocks_of_32);
  return x;
}

UnpackedProduct product_of(const Linear& linear, const void* x) {
  const Matrix& weight = linear.weight;
  const int outputs = padded(weight.outputs), group = weight.format.group;
  const int width = linear.ending == Ending::swiglu ? weight.outputs / 2 : weight.outputs;
  const std::size_t scales_at = weight_bytes(weight.format, weight.outputs, weight.inputs);
  return {.offsets = linear.groups.offsets,
          .gather = linear.groups.gather,
          .groups = linear.groups.count,
          .x = x,
          .row_chunks = row_stride(weight.inputs) * (linear.x_is_int8 ? 1 : 2) / 16,
          .codes = static_cast<const char*>(weight.data),
          .group_bytes = linear.groups.weight_stride,
          .scales_at = scales_at,
          .groups_at = scales_at + wint2_groups_at(outputs),
          .row_bytes = row_bytes(weight.format, weight.inputs),
          .outputs = outputs,
          .group_shift = group > 0 ? std::countr_zero(static_cast<unsigned>(group / 32)) : 0,
          .last_group = group > 0 ? (weight.inputs - 1) / group : 0,
          .ending = linear.ending,
          .out = static_cast<Bf16*>(linear.out),
          .stride = static_cast<std::size_t>(padded(width)),
          .scale = linear.scale,
          .interleaves_out = linear.interleaves_out};
}

using UnpackedRow = KernelRow<CUtensorMap, CUtensorMap, UnpackedProduct>;

template <class Codes>
constexpr UnpackedRow row_of() {
  using Kind = UnpackedKind<Codes>;
  return {unpacked_kernel<Kind>, kThreads, Kind::kSharedBytes};
}
/// Of int8, int4, int4 in groups and wint2.
constexpr auto kRows = make_table<4>([](auto index) {
  return row_of<typename MultipliedAt<static_cast<int>(CodeKind::int8) + index>::Codes>();
});
constexpr UnpackedRow kInt8Rows[] = {row_of<Int4BesideInt8>()};

}  // namespace

void run_unpacked(Cuda& device, const Linear& linear) {
  const Matrix& weight = linear.weight;
  const WeightFormat& format = weight.format;
  const bool interleaves = unpacked_interleaves(format);
  TROUPE_CHECK(linear.x_is_int8 ? format.kind == WeightKind::int4 && format.group == 0
                                : unpacked_takes(format) && (interleaves || !linear.x_is_interleaved));
  const bool ready = linear.x_is_interleaved || linear.x_is_int8 || !interleaves;
  const UnpackedProduct product = product_of(linear, ready ? linear.x : interleaved_x(device, linear));
  const auto codes_row = static_cast<std::uint64_t>(product.row_bytes);
  const auto x_row = static_cast<std::uint64_t>(product.row_chunks) * 16;
  const CUtensorMap codes_map =
      troupe::cuda::tensor_map({.data = weight.data,
                                .sizes = {codes_row / 2, static_cast<std::uint64_t>(product.outputs),
                                          static_cast<std::uint64_t>(product.groups)},
                                .strides = {codes_row, product.group_bytes},
                                .box = {kUnpackedPieceBytes / 2, kUnpackedOutputs / 2, 1},
                                .swizzle = interleaves ? 0 : kUnpackedPieceBytes});
  const CUtensorMap x_map =
      product.gather != nullptr
          ? codes_map  // unused
          : troupe::cuda::tensor_map({.data = product.x,
                                      .sizes = {x_row / 2, static_cast<std::uint64_t>(linear.rows), 1},
                                      .strides = {x_row, x_row},
                                      .box = {kRowBytes / 2, 64, 1}});
  const auto kind = static_cast<std::size_t>(code_kind(format)) - static_cast<std::size_t>(CodeKind::int8);
  launch(device, linear.x_is_int8 ? kInt8Rows[0] : kRows[kind],
         unpacked_size(shape_of(linear), device.multiprocessors()), {.holds_next = true}, x_map, codes_map,
         product);
}

std::vector<CompiledKernel> unpacked_kernels() { return compiled_of(kRows, kInt8Rows); }

}  // namespace troupe::kernels::cuda
