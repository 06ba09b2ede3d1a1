#pragma once
// Streaming products: how they are cut. How a block works: stream_block.cuh.
#include <algorithm>

#include "kernels/cuda/gpu_traits.h"
#include "kernels/cuda/product/shape.h"

namespace troupe::kernels::cuda {

namespace streaming {

inline constexpr int kChunkBytes = 64;  ///< of a row, that four lanes load, 16 bytes each
inline constexpr int kRowBytes = 128;   ///< of a box, two chunks; a box has the same part of several rows
inline constexpr int kBox =
    64;  ///< inputs of a box of x (fp8: 128); a box of weights covers boxes_of_x() times as many
inline constexpr int kOutputs = 64;       ///< of a block
inline constexpr int kWideOutputs = 128;  ///< of a wide one
inline constexpr int kMaxStages = 8;
inline constexpr int kMaxCluster = 8;
inline constexpr int kHeaderBytes = 1024;  ///< barriers, before the ring; boxes lie at multiples of 1024

/// Boxes of a block's inputs, at most, when the blocks of a cluster share `chunks` of them.
constexpr int boxes_per_block(int chunks, int cluster) { return ((chunks + 1) / 2 + cluster - 1) / cluster; }
/// Chunks of a row of weights; the last one of wint2 may be half a chunk.
constexpr int chunks_of(int row_bytes) { return (row_bytes + kChunkBytes - 1) / kChunkBytes; }
/// Inputs of a line of group scales: those of a bf16 of each output, wint2: of a byte. 0: no group has
/// scales.
constexpr int scale_line_inputs(const WeightFormat& format) {
  return format.kind == WeightKind::wint2 ? kWint2Unit : format.group;
}
/// Lines of group scales that a box of weights needs.
constexpr int scale_lines(const WeightFormat& format) {
  const int inputs = scale_line_inputs(format);
  return inputs == 0 ? 0 : kBox * operands_of(format) / inputs;
}
/// Boxes of x that a box of weights multiplies. fp8 takes x in codes.
constexpr int boxes_of_x(const WeightFormat& format) { return format.fp8() ? 1 : operands_of(format); }
/// Bytes from the scales of one group of inputs to those of the next, in a stage of m outputs.
constexpr int scale_line_pitch(int m) { return m * 2; }
/// fp8: bytes of the scales of a block's inputs, of n rows of x and of m outputs.
constexpr int block_scale_bytes(int boxes, int m, int n) { return boxes * (n + m / kFp8ScaleOutputs) * 4; }
/// Bytes of a stage with boxes of m outputs and n rows of the x that they multiply. Boxes begin at multiples
/// of 1024.
constexpr int stage_bytes(int m, int n, int boxes, int operands, int scale_lines) {
  const int scales = boxes * scale_lines * scale_line_pitch(m);
  return boxes * (m + n * operands) * kRowBytes + (scales + 1023) / 1024 * 1024;
}

/// log2 of the outputs that a block finishes: all m, or in a cluster a slice of at least 16.
constexpr int log_slice_of(int m, int cluster) {
  int log = m == 128 ? 7 : 6;
  for (int c = 1; c < cluster && log > 4; c *= 2) --log;
  return log;
}

}  // namespace streaming

/// A tile of streams.
struct StreamTileSize {
  int outputs, rows;
  constexpr bool operator==(const StreamTileSize&) const = default;
};
inline constexpr StreamTileSize kStreamTiles[] = {
    {streaming::kOutputs, 8},  {streaming::kOutputs, 16},     {streaming::kOutputs, 32},
    {streaming::kOutputs, 64}, {streaming::kWideOutputs, 16}, {streaming::kWideOutputs, 32}};
/// True if streams are compiled for these weights in tiles of that size: wide ones for codes of integers, and
/// wint2, which experts alone have, for few rows.
constexpr bool has_stream_kernel(CodeKind kind, const StreamTileSize& tile) {
  if (tile.outputs == streaming::kWideOutputs) return kind >= CodeKind::int8;
  return kind != CodeKind::wint2 || tile.rows < 64;
}
/// True if tiles of many rows are compiled for them.
constexpr bool has_tile_kernel(CodeKind kind) { return kind != CodeKind::wint2; }

struct StreamPlan {
  int outputs = streaming::kOutputs;  ///< of a block, or kWideOutputs
  int tile_rows = 8;                  ///< 8, 16, 32, 64 or 128: rows of x that a block takes at once
  bool many_rows = false;             ///< kWideOutputs × many_rows_tile() (linear_tiles_cuda.cu)
  int cluster = 1;                    ///< blocks that share a tile's inputs: 1, 2, 4 or 8
  int block_boxes = 0;                ///< of a block's inputs, at most
  int boxes = 4;                      ///< of weights, of a stage
  int operands = 1;                   ///< boxes_of_x()
  int scale_lines = 0;                ///< of a box of weights
  bool block_scales = false;          ///< fp8: each box of weights and of x has scales
  int stages = 2;                     ///< of a block's ring
  int shared_bytes = 0;               ///< of a block
};

namespace streaming {

inline constexpr int kMinBlockInputs = 128;  ///< of a block of a cluster
inline constexpr int kLongInputs = 2048;     ///< a block with more inputs shares them if it can
inline constexpr int kShortInputs = 2048;    ///< a group with fewer gets one stage more
inline constexpr int kMaxStageBoxes = 8;
inline constexpr int kResidentBoxes = 13;        ///< boxes of weights that a multiprocessor holds: 104 KiB
inline constexpr int kMaxResidentInputs = 4096;  ///< of 8 rows of x in shared memory: 64 KiB

/// Rows of a tile of many rows. Registers have to hold sums of a block of inputs beside fp8's.
constexpr int many_rows_tile(bool codes) { return codes ? 64 : 128; }

/// True if tiles of kWideOutputs × many_rows_tile() are filled, and are enough to keep a GPU busy that has no
/// wgmma for such products.
constexpr bool has_many_rows(const LinearShape& shape, const GpuTraits& gpu) {
  if (gpu.features.wgmma || gpu.batch_invariant || shape.format.kind == WeightKind::wint2) return false;
  const int tile = many_rows_tile(shape.format.quantised()), rows = shape.average_rows();
  if (4 * rows <= 3 * tile) return false;
  const int row_tiles = (rows + tile - 1) / tile * std::max(shape.groups, 1);
  return (padded(shape.outputs) + kWideOutputs - 1) / kWideOutputs * row_tiles >= gpu.multiprocessors;
}

constexpr int tile_rows(const LinearShape& shape, const GpuTraits& gpu) {
  if (gpu.batch_invariant) return 32;
  const int rows = shape.average_rows();
  // Some groups have several times the average. Codes are expanded for each tile, so fewer tiles pay sooner.
  if (shape.grouped()) return rows <= 1 ? 8 : rows <= (shape.format.quantised() ? 10 : 16) ? 16 : 32;
  return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

/// Inputs are counted as if they had 16 bits. A cluster pays where the outputs alone give too few blocks.
/// With more rows its blocks have more sums to send and more of x to read.
constexpr int cluster_size(const LinearShape& shape, const GpuTraits& gpu, int rows) {
  if (!gpu.features.clusters || shape.grouped()) return 1;
  const int inputs = shape.weight_row_bytes() / 2, tiles = (padded(shape.outputs) + kOutputs - 1) / kOutputs;
  const int all = gpu.multiprocessors;
  const int wanted = rows == 8 ? 2 * all : rows == 16 ? all * 7 / 5 : rows == 32 ? all : all * 9 / 20;
  const auto too_few = [&](int cluster) {
    const int blocks = tiles * cluster;
    return blocks < wanted || (blocks < 2 * all && inputs / cluster > kLongInputs) ||
           (rows == 8 && shape.stride() / cluster > kMaxResidentInputs);
  };
  int cluster = 1;
  while (cluster < kMaxCluster && inputs / (2 * cluster) >= kMinBlockInputs && too_few(cluster)) cluster *= 2;
  return cluster;
}

/// Outputs of a block. A wide one reads half as much of x for each weight and loads half as many of mma's
/// operands of x. That pays for codes of experts, if there are three blocks for two multiprocessors. The
/// order of additions is the same.
constexpr int block_outputs(const LinearShape& shape, const GpuTraits& gpu, int rows) {
  const bool codes = shape.format.quantised() && !shape.format.fp8();
  if (!shape.grouped() || !codes || rows < 16 || rows > 32) return kOutputs;
  const int tiles = (padded(shape.outputs) + kWideOutputs - 1) / kWideOutputs;
  return 2 * tiles * std::min(shape.groups, shape.rows) >= 3 * gpu.multiprocessors ? kWideOutputs : kOutputs;
}

/// Stages of a ring, if the inputs and shared memory are enough for them.
constexpr int wanted_stages(const LinearShape& shape, int outputs, int rows) {
  // wint2 is bound by decoding, which wants the warps of several blocks on a multiprocessor.
  if (shape.format.kind == WeightKind::wint2) return rows == 8 ? 3 : 2;
  if (rows == 8) return shape.grouped() && shape.stride() <= kShortInputs ? 5 : 4;
  return outputs == kWideOutputs && rows == 32 ? 2 : 3;
}

constexpr int shared_bytes(const StreamPlan& plan) {
  const int n = plan.tile_rows;
  const bool whole_x = n == 8;  // lies beside the ring, not in it
  const int ring =
      plan.stages * stage_bytes(plan.outputs, whole_x ? 0 : n, plan.boxes, plan.operands, plan.scale_lines);
  const int x = whole_x ? plan.block_boxes * plan.operands * n * kRowBytes : 0;
  const int slice = 1 << log_slice_of(plan.outputs, plan.cluster);
  const int inbox = plan.cluster > 1 ? plan.cluster * n * (slice + 4) * 4 : 0;
  const int scales = plan.block_scales ? block_scale_bytes(plan.block_boxes, plan.outputs, n) : 0;
  return kHeaderBytes + std::max(ring + x + inbox, n * (plan.outputs + 4) * 4) + scales;
}

/// Three stages if a multiprocessor then still has room for two blocks, else two stages for two blocks, else
/// as many as one block has room for. Scales of fp8 lie in the header, a stage's behind each other.
constexpr StreamPlan many_rows_plan(const LinearShape& shape, const GpuTraits& gpu) {
  StreamPlan plan{.outputs = kWideOutputs,
                  .tile_rows = many_rows_tile(shape.format.quantised()),
                  .many_rows = true,
                  .block_boxes = boxes_per_block(shape.weight_row_bytes() / kChunkBytes, 1),
                  .boxes = 1,
                  .operands = boxes_of_x(shape.format),
                  .scale_lines = scale_lines(shape.format),
                  .stages = 3};
  const int half = (gpu.block_shared_bytes + 1024) / 2 - 1024;
  plan.shared_bytes = shared_bytes(plan);
  if (plan.shared_bytes > half) {
    StreamPlan two = plan;
    two.stages = 2;
    two.shared_bytes = shared_bytes(two);
    if (two.shared_bytes <= half || plan.shared_bytes > gpu.block_shared_bytes) plan = two;
  }
  if (plan.shared_bytes > gpu.block_shared_bytes) plan.stages = 1;
  plan.stages = std::min(plan.stages, plan.block_boxes);
  plan.shared_bytes = shared_bytes(plan);
  return plan;
}

}  // namespace streaming

/// Of any dense or grouped product of 16-bit activations, or of fp8 codes. Found by measurement on an H200:
/// rings of 32 or 40 KiB keep the memory busy and leave room for several blocks on a multiprocessor. A matrix
/// that fits the rings of all multiprocessors is fetched whole before the kernel's turn.
constexpr StreamPlan stream_plan(const LinearShape& shape, const GpuTraits& gpu) {
  using namespace streaming;
  if (has_many_rows(shape, gpu)) return many_rows_plan(shape, gpu);
  const int tiles = (padded(shape.outputs) + kOutputs - 1) / kOutputs;
  StreamPlan plan{.tile_rows = tile_rows(shape, gpu),
                  .operands = boxes_of_x(shape.format),
                  .scale_lines = scale_lines(shape.format),
                  .block_scales = shape.format.fp8()};
  plan.cluster = cluster_size(shape, gpu, plan.tile_rows);
  if (plan.tile_rows == 8 && shape.stride() / plan.cluster > kMaxResidentInputs) plan.tile_rows = 16;
  plan.block_boxes = boxes_per_block(chunks_of(shape.weight_row_bytes()), plan.cluster);
  plan.boxes = plan.tile_rows == 8 || plan.operands > 1 ? 1 : 2;
  plan.outputs = block_outputs(shape, gpu, plan.tile_rows);
  plan.stages = wanted_stages(shape, plan.outputs, plan.tile_rows);
  if (!shape.grouped() && plan.tile_rows == 8 && plan.block_boxes <= kMaxStageBoxes &&
      tiles * plan.cluster * plan.block_boxes <= gpu.multiprocessors * kResidentBoxes) {
    StreamPlan whole = plan;
    whole.boxes = whole.block_boxes;
    whole.stages = 1;
    if (shared_bytes(whole) <= gpu.block_shared_bytes) plan = whole;
  }
  // Where no clusters share the inputs, few blocks have to keep the memory busy: each asks for as much as
  // fits.
  if (!gpu.features.clusters && !shape.grouped() &&
      tiles * ((shape.rows + plan.tile_rows - 1) / plan.tile_rows) <= gpu.multiprocessors) {
    plan.stages = kMaxStages;
    plan.boxes = plan.operands > 1 ? 1 : 2;
  }
  plan.boxes = std::min(plan.boxes, plan.block_boxes);
  plan.stages =
      std::clamp((plan.block_boxes + plan.boxes - 1) / plan.boxes, 1, std::min(plan.stages, kMaxStages));
  while (plan.stages > 1 && shared_bytes(plan) > gpu.block_shared_bytes) --plan.stages;
  plan.shared_bytes = shared_bytes(plan);
  return plan;
}

}  // namespace troupe::kernels::cuda
