#pragma once
// Experts of a few rows: how their two products are cut. How they work: moe_few_cuda.cu.
#include <algorithm>

#include "kernels/cuda/gpu_traits.h"
#include "kernels/cuda/product/shape.h"
#include "kernels/cuda/product/stream.h"
#include "kernels/moe.h"

namespace troupe::kernels::cuda {

/// Rows of an op, at most. Experts that several of them chose are read by each, so that more rows of bf16 are
/// no faster than streams.
inline constexpr int kMostFewRows = 4;
constexpr int most_few_rows(CodeKind kind) {
  return kind == CodeKind::bf16 ? 2 : kind == CodeKind::int8 || kind == CodeKind::int4 ? kMostFewRows : 0;
}
constexpr bool has_few_kernel(CodeKind kind) { return most_few_rows(kind) > 0; }

namespace few {

inline constexpr int kOutputs = 16;  ///< of a block
inline constexpr int kBoxRowBytes = 128,
                     kBoxBytes = kOutputs * kBoxRowBytes;  ///< a piece of 16 rows of weights
inline constexpr int kGateUpHeld = 3, kDownHeld = 4;       ///< boxes that a warp has under way
inline constexpr int kMostWarps = 8;                       ///< of a block
inline constexpr int kMostTiles = 8;                       ///< of 16 outputs of gate|up, of a block
inline constexpr int kMostTileBytes =
    64 << 10;                            ///< beside shared slices, of a tile that is not alone in its block
inline constexpr int kLeastRowsOfX = 2;  ///< that gate|up has room for

/// Bytes from one row of x to the next in a warp's shared memory, rows of `pieces` pieces of 64 bytes:
/// neighbours are in different banks.
constexpr int x_pitch(int pieces) { return (pieces * 64) | 64; }

/// Of a row of weights; the last one may be half a box.
constexpr int boxes_of(const WeightFormat& format, int inputs) {
  return (row_bytes(format, inputs) + kBoxRowBytes - 1) / kBoxRowBytes;
}

/// Of gate|up: a block's warps share the inputs.
struct GateUpPlan {
  int warps = 0;
  int boxes = 0;  ///< that a warp has of a tile, at most
  int tiles = 1;  ///< of a block, one after the other
  int shared_bytes = 0;
};
/// Of down: a block has one row of x; its warps share the row's experts.
struct DownPlan {
  int warps = 0;
  int shared_bytes = 0;
};

struct GateUpShape {
  WeightFormat format{};
  int inputs = 0, outputs = 0;  ///< outputs with padding, of both halves
  int rows = 0, top_k = 0, shared = 0;
};

constexpr GateUpShape shape_of(const Moe& op) {
  const Matrix& gate_up = op.gate_up.first;
  return {gate_up.format, gate_up.inputs, padded(gate_up.outputs), op.rows, op.top_k, op.shared};
}

/// Warps: of the numbers that have all of a tile's boxes under way at once, or of the largest, the one whose
/// warps have most nearly the same number. Tiles of a block: as many as it takes for all blocks to run at
/// once, as each block begins with a trip to memory. Blocks of shared slices end while the routing runs and
/// leave their places empty, which costs more than that saves: beside them a block has two tiles at most, and
/// one if it is of more than kMostTileBytes. Where there is one row of x there is room for two, so
/// that as many blocks share a multiprocessor as when this was measured, on an H200.
constexpr GateUpPlan gate_up_plan(const GateUpShape& shape, const GpuTraits& gpu) {
  const int boxes = boxes_of(shape.format, shape.inputs);
  GateUpPlan plan;
  int least = boxes + 1;
  for (int warps = std::min(kMostWarps, (boxes + kGateUpHeld - 1) / kGateUpHeld); warps <= kMostWarps;
       ++warps) {
    const int share = (boxes + warps - 1) / warps, idle = share * warps - boxes;
    if (idle >= least) continue;
    least = idle;
    plan.warps = warps;
    plan.boxes = share;
  }
  const int x = std::max(shape.rows, kLeastRowsOfX) *
                (x_pitch(plan.boxes * 2 * operands_of(shape.format)) + 2 * kOutputs * 4);
  plan.shared_bytes = plan.warps * (kGateUpHeld * kBoxBytes + x);
  constexpr int kReserved = 2 << 10;  // of a block: what the system takes, and static arrays
  const int together = std::max(1, (gpu.block_shared_bytes + 1024) / (plan.shared_bytes + kReserved));
  const int tiles = shape.outputs / kOutputs * (shape.shared + shape.rows * shape.top_k),
            slots = together * gpu.multiprocessors;
  const int most = shape.shared == 0 ? kMostTiles : boxes * kBoxBytes > kMostTileBytes ? 1 : 2;
  plan.tiles = std::clamp((tiles + slots - 1) / slots, 1, most);
  return plan;
}
constexpr DownPlan down_plan(const WeightFormat& format, int inputs, int experts) {
  DownPlan plan;
  plan.warps = std::min(kMostWarps, experts);
  const int x = x_pitch(boxes_of(format, inputs) * 2 * operands_of(format));
  plan.shared_bytes = plan.warps * (kDownHeld * kBoxBytes + x) + experts * kOutputs * 4;
  return plan;
}

}  // namespace few

}  // namespace troupe::kernels::cuda
