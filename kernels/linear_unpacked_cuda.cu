// Launching products of experts whose codes are unpacked in registers. How a block works:
// kernels/cuda/product/unpacked_product.cuh.
#include <algorithm>

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
  const std::size_t bytes = working_bytes(linear, LinearWay::unpacked), blocks_of_32 = bytes / 64;
  void* x = linear.working_memory != nullptr ? linear.working_memory : device.scratch(bytes);
  troupe::cuda::launch(
      device, interleave_kernel,
      {.grid = dim3(static_cast<unsigned>((blocks_of_32 + kInterleaveThreads - 1) / kInterleaveThreads)),
       .block = kInterleaveThreads},
      static_cast<const uint4*>(linear.x), static_cast<uint4*>(x), blocks_of_32);
  return x;
}

}  // namespace

void run_unpacked(Cuda& device, const Linear& linear) {
  const Matrix& weight = linear.weight;
  const int outputs = padded(weight.outputs), codes_row = row_bytes(weight.format, weight.inputs);
  const int width = linear.ending == Ending::swiglu ? weight.outputs / 2 : weight.outputs;
  const UnpackedProduct product{
      .offsets = linear.groups.offsets,
      .gather = linear.groups.gather,
      .groups = linear.groups.count,
      .x = linear.x_is_interleaved || linear.x_is_int8 ? linear.x : interleaved_x(device, linear),
      .row_chunks = row_stride(weight.inputs) * (linear.x_is_int8 ? 1 : 2) / 16,
      .codes = static_cast<const char*>(weight.data),
      .group_bytes = linear.groups.weight_stride,
      .scales_at = weight_bytes(weight.format, weight.outputs, weight.inputs),
      .groups_at = weight_bytes(weight.format, weight.outputs, weight.inputs) + wint2_groups_at(outputs),
      .row_bytes = codes_row,
      .outputs = outputs,
      .ending = linear.ending,
      .out = static_cast<Bf16*>(linear.out),
      .stride = static_cast<std::size_t>(padded(width)),
      .scale = linear.scale,
      .interleaves_out = linear.interleaves_out};
  const CUtensorMap codes_map = troupe::cuda::tensor_map(
      {.data = weight.data,
       .dtype = DType::bf16,
       .sizes = {static_cast<std::uint64_t>(codes_row / 2), static_cast<std::uint64_t>(outputs),
                 static_cast<std::uint64_t>(product.groups)},
       .strides = {static_cast<std::uint64_t>(codes_row), product.group_bytes},
       .box = {kUnpackedPieceBytes / 2, kUnpackedOutputs, 1},
       .swizzled = false});
  const long long row_tiles = linear.rows / kUnpackedRows + product.groups;
  const long long tiles = row_tiles * ((outputs + kUnpackedOutputs - 1) / kUnpackedOutputs);
  const auto blocks = static_cast<unsigned>(std::min<long long>(tiles, device.multiprocessors()));
  const auto launch = [&](auto kind) {
    using Codes = decltype(kind);
    if constexpr (Codes::kOutputScales) {
      const auto kernel = unpacked_kernel<Codes>;
      troupe::cuda::allow_shared(kernel, UnpackedShape::kSharedBytes);
      troupe::cuda::launch(device, kernel,
                           {.grid = dim3(blocks),
                            .block = dim3(kThreads),
                            .shared_bytes = UnpackedShape::kSharedBytes,
                            .overlap = {.holds_next = true}},
                           codes_map, product);
    }
  };
  if (linear.x_is_int8) {
    TROUPE_CHECK(weight.format.kind == WeightKind::int4 && weight.format.group == 0);
    launch(Int4BesideInt8{});
  } else {
    TROUPE_CHECK(with_codes(weight.format, launch));
  }
}

}  // namespace troupe::kernels::cuda
