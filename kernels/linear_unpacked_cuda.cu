// Launching products of experts whose codes are unpacked in registers. How a block works:
// kernels/cuda/product/unpacked_product.cuh.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
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

template <class Kind>
void launch_unpacked(Cuda& device, const Linear& linear, const UnpackedProduct& product) {
  const Matrix& weight = linear.weight;
  const auto codes_row = static_cast<std::uint64_t>(product.row_bytes);
  const auto x_row = static_cast<std::uint64_t>(product.row_chunks) * 16;
  const CUtensorMap codes_map =
      troupe::cuda::tensor_map({.data = weight.data,
                                .sizes = {codes_row / 2, static_cast<std::uint64_t>(product.outputs),
                                          static_cast<std::uint64_t>(product.groups)},
                                .strides = {codes_row, product.group_bytes},
                                .box = {kUnpackedPieceBytes / 2, Kind::kWarpgroupColumns, 1},
                                .swizzle = UnpackedOperands<Kind>::kSwizzled ? kUnpackedPieceBytes : 0});
  const CUtensorMap x_map =
      product.gather != nullptr
          ? codes_map  // unused
          : troupe::cuda::tensor_map({.data = product.x,
                                      .sizes = {x_row / 2, static_cast<std::uint64_t>(linear.rows), 1},
                                      .strides = {x_row, x_row},
                                      .box = {kRowBytes / 2, 64, 1}});
  const long long row_tiles = linear.rows / kUnpackedRows + product.groups;
  const long long tiles = row_tiles * ((product.outputs + kUnpackedOutputs - 1) / kUnpackedOutputs);
  const auto blocks = static_cast<unsigned>(std::min<long long>(tiles, device.multiprocessors()));
  const auto kernel = unpacked_kernel<Kind>;
  troupe::cuda::allow_shared(kernel, Kind::kSharedBytes);
  troupe::cuda::launch(device, kernel,
                       {.grid = dim3(blocks),
                        .block = dim3(kThreads),
                        .shared_bytes = Kind::kSharedBytes,
                        .overlap = {.holds_next = true}},
                       x_map, codes_map, product);
}

}  // namespace

void run_unpacked(Cuda& device, const Linear& linear) {
  const WeightFormat& format = linear.weight.format;
  const bool ready = linear.x_is_interleaved || linear.x_is_int8 || !unpacked_interleaves(format);
  const UnpackedProduct product = product_of(linear, ready ? linear.x : interleaved_x(device, linear));
  const auto launch = [&](auto codes) {
    using Codes = decltype(codes);
    if constexpr (Codes::kOutputScales || Codes::kGroupScales)
      launch_unpacked<UnpackedKind<Codes>>(device, linear, product);
  };
  if (linear.x_is_int8) {
    TROUPE_CHECK(format.kind == WeightKind::int4 && format.group == 0);
    launch(Int4BesideInt8{});
  } else {
    TROUPE_CHECK(unpacked_takes(format) && (unpacked_interleaves(format) || !linear.x_is_interleaved));
    TROUPE_CHECK(with_codes(format, launch));
  }
}

}  // namespace troupe::kernels::cuda
