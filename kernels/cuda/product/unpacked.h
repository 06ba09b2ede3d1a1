#pragma once
// Products on Hopper whose weights are codes, for more rows than streams like (LinearWay::unpacked): which
// they are, their tiles, and how x lies. The kernel: unpacked_product.cuh.
//
// x is natural or interleaved. Interleaved: of each 32 elements of a row, element 8 t + 2 k + e lies at 8 k +
// 2 t + e (t, k: 0 … 3; e: 0, 1). Doing it twice gives the natural order.
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

/// Formats whose experts get interleaved x; the others read it as it lies. Interleaved codes are read from
/// shared memory once, natural ones by four lanes each, but interleaving costs a kernel.
inline constexpr bool kInterleavesExperts = true;

/// Dense products of these formats run unpacked where unpacked_cycles() says that it pays.
inline constexpr bool kUnpacksDenseInt8 = true, kUnpacksDenseInt4 = true, kUnpacksDenseGroups = true;
/// Experts with scales of groups run unpacked.
inline constexpr bool kUnpacksExpertsOfGroups = true;

/// int8, int4 and wint2 multiplied by bf16. Groups of int4 are 32, 64, 128, … inputs.
constexpr bool unpacked_takes(const WeightFormat& format) {
  const bool groups =
      format.kind == WeightKind::int4 && format.group >= 32 && (format.group & (format.group - 1)) == 0;
  return (format.scales_outputs() || groups || format.kind == WeightKind::wint2) &&
         format.activations == DType::bf16;
}
/// Of qkv, whole swizzled halves of heads; wint2 of experts alone, with their endings.
constexpr bool unpacked_takes(const LinearShape& shape, const GpuTraits& gpu) {
  const bool of_experts =
      shape.grouped() && (shape.ending == Ending::swiglu || shape.ending == Ending::store_scaled);
  return gpu.features.wgmma && unpacked_takes(shape.format) &&
         (of_experts || shape.format.kind != WeightKind::wint2) &&
         (shape.ending != Ending::qkv || (shape.head_dim % 64 == 0 && shape.kv == DType::bf16));
}

/// True if x is interleaved by a kernel of its own, where it is not interleaved yet.
constexpr bool unpacked_interleaves(const WeightFormat& format, bool grouped) {
  return format.kind == WeightKind::wint2 || (kInterleavesExperts && grouped && format.scales_outputs());
}

/// Bytes of `rows` interleaved rows of x.
constexpr std::size_t interleaved_bytes(int rows, int inputs) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(row_stride(inputs)) * 2;
}

/// Steps of 64 inputs of a row of codes.
constexpr int unpacked_steps(const WeightFormat& format, int inputs) {
  return (padded_inputs(format, inputs) + 63) / 64;
}

/// Cycles of a dense product with tiles of so many rows: those of wgmma_cycles(), by which ways are compared.
/// Estimates. With 64 rows shared memory bounds a step, as each code is read as often for half the products.
constexpr double unpacked_cycles(const LinearShape& shape, int tile_rows, int multiprocessors) {
  const double step = tile_rows == kUnpackedRows ? 1150 : shape.format.kind == WeightKind::int8 ? 800 : 700;
  const double ending = 2000.0 * tile_rows / kUnpackedRows;  // the other warpgroup's products hide the rest
  const int tiles = (shape.rows + tile_rows - 1) / tile_rows *
                    ((padded(shape.outputs) + kUnpackedOutputs - 1) / kUnpackedOutputs);
  const int waves = (tiles + multiprocessors - 1) / multiprocessors;
  return waves * (unpacked_steps(shape.format, shape.inputs) * step + ending);
}

struct UnpackedPlan {
  int tile_rows = kUnpackedRows;  ///< or half of them, of dense products
  bool interleaves = false;       ///< unpacked_interleaves()
};

/// Low tiles where a dense product fills the GPU better so.
constexpr UnpackedPlan unpacked_plan(const LinearShape& shape, const GpuTraits& gpu) {
  UnpackedPlan plan{.interleaves = unpacked_interleaves(shape.format, shape.grouped())};
  if (!shape.grouped() && unpacked_cycles(shape, kUnpackedRows / 2, gpu.multiprocessors) <
                              unpacked_cycles(shape, kUnpackedRows, gpu.multiprocessors))
    plan.tile_rows = kUnpackedRows / 2;
  return plan;
}

}  // namespace troupe::kernels::cuda
