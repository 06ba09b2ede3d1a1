#pragma once
// Products of experts on Hopper whose weights are codes, for more rows than streams like
// (LinearWay::unpacked): which they are, and how x lies. The kernel: unpacked_product.cuh.
//
// x is interleaved where scales belong to outputs: of each 32 elements of a row, element 8 t + 2 k + e lies
// at 8 k + 2 t + e (t, k: 0 … 3; e: 0, 1). Doing it twice gives the natural order.
#include <cstddef>

#include "kernels/cuda/gpu_traits.h"
#include "kernels/cuda/product/shape.h"

namespace troupe::kernels::cuda {

/// Outputs and rows of x of a tile. A tile with fewer rows multiplies fewer.
inline constexpr int kUnpackedOutputs = 256, kUnpackedRows = 128;
/// Bytes of codes of an output that are fetched at a time.
inline constexpr int kUnpackedPieceBytes = 64;
/// Rows of an average group from which it beats streams. They expand codes anew for each 32 rows.
inline constexpr int kManyRowsOfUnpacked = 48;
/// Rows of an average group up to which it beats expanding int8 and groups of int4 in memory once. int4 with
/// scales of outputs takes fewer instructions and bytes, and always does. On an H200 with the 21B's experts,
/// groups of int4: 324 of 268 TFLOP/s with 248 rows, 406 of 478 with 993.
inline constexpr int kMostRowsOfUnpacked = 600;

/// int8, int4 and wint2 multiplied by bf16.
constexpr bool unpacked_takes(const WeightFormat& format) {
  return (format.kind == WeightKind::int8 || format.kind == WeightKind::int4 ||
          format.kind == WeightKind::wint2) &&
         format.activations == DType::bf16;
}
/// Of experts, with their endings.
constexpr bool unpacked_takes(const LinearShape& shape, const GpuTraits& gpu) {
  return gpu.features.wgmma && shape.grouped() && unpacked_takes(shape.format) &&
         (shape.ending == Ending::swiglu || shape.ending == Ending::store_scaled);
}

/// True if the product reads interleaved x.
constexpr bool unpacked_interleaves(const WeightFormat& format) { return format.group == 0; }

/// Bytes of `rows` interleaved rows of x.
constexpr std::size_t interleaved_bytes(int rows, int inputs) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(row_stride(inputs)) * 2;
}

}  // namespace troupe::kernels::cuda
