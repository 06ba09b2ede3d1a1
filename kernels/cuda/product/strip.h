#pragma once
// Strips: products of up to eight rows whose weights nearly fit the shared memory of the GPU. Which products
// they take and how those are cut. How a block works: strip_block.cuh. Why: kernels/README.md.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/gpu_traits.h"
#include "kernels/cuda/product/shape.h"

namespace troupe::kernels::cuda {

inline constexpr int kStripRows = 8;        ///< rows of x, at most
inline constexpr int kStripRowsPerSet = 4;  ///< rows of x that one tensor core instruction takes
inline constexpr int kStripWarps = 8;       ///< warps of a block
/// Neighbouring inputs that a warp takes of each slice: those of 16 bytes of codes of each lane, at least 64.
constexpr int strip_warp_inputs(WeightKind kind) { return kind == WeightKind::int4 ? 128 : 64; }
constexpr int strip_slice_inputs(WeightKind kind) { return strip_warp_inputs(kind) * kStripWarps; }
/// A lane has the scales of this many inputs of int4 in registers.
inline constexpr int kStripScaleInputs = 64;
inline constexpr int kStripTileOutputs = 8;    ///< outputs that a warp multiplies at a time
inline constexpr int kStripPaddingBytes = 64;  ///< after each row of weights in shared memory
/// Barriers, and the sums of squares of each row and warp.
inline constexpr int kStripHeaderBytes = 64 + kStripRows * kStripWarps * 4;
/// Sums that a block of a cluster receives from its peer, at most.
inline constexpr int kStripInboxBytes = kStripRows * 24 * 4;
/// Shared memory of a block: two blocks fit on a multiprocessor.
inline constexpr int kStripMaxSharedBytes = 113 << 10;
/// Rows of weights that are requested together.
inline constexpr int kStripRowsPerCopy = 4;

constexpr int sums_of_squares(int cols, int squares_per_sum = kSquaresPerSum) {
  return padded(cols) / squares_per_sum;
}

/// A compiled kernel. It serves any product of this ending with at most so many outputs and inputs per block.
struct StripKernel {
  Ending ending;
  int cluster;  ///< blocks that share the inputs of the same outputs: 1 or 2
  int tiles;    ///< of eight outputs, per block
  int slices;   ///< of strip_slice_inputs(kind) inputs, per block
  bool consumes_halved_norm;
  WeightKind kind = WeightKind::bf16;
  int row_sets = 2;  ///< compiled for one set of four rows up to so many

  constexpr bool operator==(const StripKernel&) const = default;
};

/// Kernels exist for what the documented models and the demo model need, whole and cut for 2, 4 and 8 ranks,
/// on the Hoppers that gpu/cards.h names (tests/choosers/reached_kernels_test.cpp). Other products are cut
/// more finely if that gives one of these kernels, else they stream.
inline constexpr StripKernel kStripKernels[] = {
    {Ending::add, 1, 1, 2, false},
    {Ending::add, 1, 1, 4, false},
    {Ending::add, 1, 2, 2, false},
    {Ending::add, 1, 3, 2, false},
    {Ending::add, 1, 3, 4, false},
    {Ending::add, 1, 6, 2, false},
    {Ending::add, 2, 2, 2, false},
    {Ending::add, 2, 2, 3, false},
    {Ending::add, 2, 4, 2, false},
    {Ending::add, 2, 4, 3, false},
    {Ending::add, 2, 5, 3, false},
    {Ending::qkv, 1, 1, 2, false},
    {Ending::qkv, 1, 1, 2, true},
    {Ending::qkv, 1, 2, 2, false},
    {Ending::qkv, 1, 3, 2, false},
    {Ending::qkv, 1, 3, 2, true},
    {Ending::qkv, 2, 2, 3, false},
    {Ending::qkv, 2, 3, 3, false},
    {Ending::qkv, 2, 4, 3, false},
    {Ending::qkv, 2, 5, 3, false},
    {Ending::qkv, 2, 5, 3, true, WeightKind::bf16, 1},  // behind experts of a few rows
    {Ending::swiglu, 1, 2, 2, false},
    {Ending::swiglu, 1, 4, 2, false},
    {Ending::swiglu, 1, 4, 2, true},
    {Ending::swiglu, 1, 6, 2, false},
    {Ending::swiglu, 1, 6, 2, true},
    // Quantised weights, of the published models alone: int8, and int4 in groups.
    {Ending::add, 2, 2, 2, false, WeightKind::int8},
    {Ending::add, 2, 2, 3, false, WeightKind::int8},
    {Ending::add, 2, 5, 3, false, WeightKind::int8},
    {Ending::qkv, 1, 3, 2, false, WeightKind::int8},
    {Ending::qkv, 1, 3, 2, true, WeightKind::int8},
    {Ending::qkv, 2, 5, 3, false, WeightKind::int8},
    {Ending::qkv, 2, 5, 3, true, WeightKind::int8, 1},
    {Ending::swiglu, 1, 6, 2, true, WeightKind::int8},
    {Ending::add, 2, 2, 1, false, WeightKind::int4},
    {Ending::add, 2, 2, 2, false, WeightKind::int4},
    {Ending::qkv, 1, 3, 1, false, WeightKind::int4},
    {Ending::qkv, 1, 3, 1, true, WeightKind::int4},
    {Ending::swiglu, 1, 6, 1, true, WeightKind::int4},
};

constexpr bool has_strip_kernel(const StripKernel& wanted) {
  return std::find(std::begin(kStripKernels), std::end(kStripKernels), wanted) != std::end(kStripKernels);
}

struct StripPlan {
  StripKernel kernel{};
  /// Of a block: a multiple of 4, of gate|up of 16, in a cluster of 8. 0: strips do not take this product.
  int outputs = 0;
  int row_sets = 1;  ///< 2: more than four rows of x
  /// A block's shared memory holds the header, a cluster's inbox, the block's weights, and the sums of its
  /// warps; these overwrite the weights if they do not fit beside them.
  int shared_bytes = 0;
  int sums_offset = 0;
  bool sums_overwrite_weights = false;
  int blocks = 0;  ///< launched; the last ones may have no outputs
  /// Cycles from one KiB of weights that a block requests to the next.
  int copy_interval_cycles = 0;

  explicit operator bool() const { return outputs > 0; }
};

/// Offset of the weights in a block's shared memory.
constexpr int strip_weights_offset(int cluster) {
  return kStripHeaderBytes + (cluster == 2 ? kStripInboxBytes : 0);
}

/// The interval at which blocks, one on each multiprocessor, together request exactly the memory's bandwidth,
/// times a factor that measurements on an H200 found best (kernels/tried.md). There it gives 53 cycles,
/// and 70, 85 and 60 behind a halved norm: a step is shorter when its x is not held up by the next product's
/// weights.
inline int strip_copy_interval(const GpuTraits& gpu, bool consumes_halved_norm, int rows) {
  const double fair = gpu.multiprocessors * 1024.0 * gpu.clock_hz / gpu.memory_bytes_per_s;
  const double factor = !consumes_halved_norm ? 0.953 : rows <= 2 ? 1.26 : rows <= 4 ? 1.53 : 1.08;
  return std::max(1, static_cast<int>(std::lround(fair * factor)));
}

/// True if strips multiply weights of this format by bf16: int4 in groups, because dense weights of 4 bits
/// have them.
constexpr bool strips_take(const WeightFormat& format) {
  return format.activations == DType::bf16 &&
         (format.kind == WeightKind::bf16 || format.kind == WeightKind::int8 ||
          (format.kind == WeightKind::int4 && format.group >= kStripScaleInputs));
}

/// Takes dense products of bf16 activations with few enough rows, inputs and outputs, and three endings:
/// `add` can produce a halved norm, the other two can consume one. The GPU has to have clusters, and not be
/// batch-invariant: sums depend on the number of rows.
///
/// Cut for one block on each multiprocessor if such a block fits, else for half as many again, else for twice
/// as many. From 2,048 inputs two blocks share the inputs: each reads half of x, which is worth the exchange
/// of their sums.
inline StripPlan strip_plan(const LinearShape& shape, const GpuTraits& gpu) {
  const bool consumes = shape.consumes_halved_norm, produces = shape.produces_halved_norm;
  const bool pairs = shape.ending == Ending::swiglu, adds = shape.ending == Ending::add;
  const bool ending = shape.ending == Ending::qkv ? shape.head_dim % 4 == 0 : pairs || (adds && !consumes);
  const int inputs = shape.stride(), outputs = padded(shape.outputs);
  const int cluster =
      !pairs && inputs >= 2048 && inputs % (2 * strip_warp_inputs(shape.format.kind)) == 0 ? 2 : 1;
  const int block_inputs = inputs / cluster;
  const WeightKind kind = shape.format.kind;
  const int warp_inputs = strip_warp_inputs(kind), slice_inputs = strip_slice_inputs(kind);
  if (!gpu.features.clusters || gpu.batch_invariant || !strips_take(shape.format) || !shape.covers_x() ||
      shape.grouped() || shape.rows > kStripRows || !ending || (produces && !adds) ||
      block_inputs % warp_inputs != 0) {
    return {};
  }
  const int slices = (block_inputs + slice_inputs - 1) / slice_inputs;
  const int weights_offset = strip_weights_offset(cluster);
  for (const int half_blocks : {2, 3, 4}) {  // twice the blocks for each multiprocessor
    const int unit = pairs ? 16 : (produces ? shape.squares_per_sum : 4) * cluster;
    const int strips = gpu.multiprocessors * half_blocks / 2 / cluster;
    const int share = (outputs + strips - 1) / strips;
    StripPlan plan{.outputs = std::max((share + unit - 1) / unit * unit, kStripTileOutputs * cluster),
                   .row_sets = shape.rows > kStripRowsPerSet ? 2 : 1};
    int tiles = (plan.outputs + kStripTileOutputs - 1) / kStripTileOutputs;
    if (tiles == 5 && cluster == 1) tiles = 6;
    plan.kernel = {.ending = shape.ending,
                   .cluster = cluster,
                   .tiles = tiles,
                   .slices = kind == WeightKind::int4      ? slices
                             : slices <= 2                 ? 2
                             : cluster == 1 && slices == 3 ? 4
                                                           : slices,
                   .consumes_halved_norm = consumes,
                   .kind = kind};
    if (plan.row_sets == 1 && !has_strip_kernel(plan.kernel)) plan.kernel.row_sets = 1;
    if (!has_strip_kernel(plan.kernel)) continue;
    const int weights = plan.outputs * (block_inputs * shape.format.bits() / 8 + kStripPaddingBytes);
    const int sums = kStripWarps * shape.rows * (plan.outputs + 4) * 4;
    plan.sums_overwrite_weights = weights_offset + weights + sums > kStripMaxSharedBytes;
    plan.sums_offset = weights_offset + (plan.sums_overwrite_weights ? 0 : weights);
    plan.shared_bytes = std::max(weights_offset + weights, plan.sums_offset + sums);
    if (plan.shared_bytes > std::min(kStripMaxSharedBytes, gpu.block_shared_bytes)) continue;
    // No multiprocessor is left without a block: the next kernel's first blocks would all be placed there,
    // several on one, and be slow.
    plan.blocks = (outputs + plan.outputs - 1) / plan.outputs * cluster;
    plan.blocks = (plan.blocks + gpu.multiprocessors - 1) / gpu.multiprocessors * gpu.multiprocessors;
    plan.blocks += plan.blocks % cluster;
    plan.copy_interval_cycles = strip_copy_interval(gpu, consumes, shape.rows);
    return plan;
  }
  return {};
}

}  // namespace troupe::kernels::cuda
