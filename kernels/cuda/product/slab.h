#pragma once
// Slabs: products of 9 to 64 rows whose weights nearly fit the shared memory of the GPU. Which products they
// take, how those are cut, and where a lane finds its numbers. How a block works: slab_block.cuh. Why:
// kernels/README.md.
#include <algorithm>
#include <iterator>

#include "kernels/cuda/gpu_traits.h"
#include "kernels/cuda/product/shape.h"
#include "kernels/cuda/product/strip.h"

namespace troupe::kernels::cuda {

inline constexpr int kSlabLeastRows = kStripRows + 1;  ///< rows of x
inline constexpr int kSlabMostRows = 64;               ///< that one instruction takes
inline constexpr int kSlabChunkInputs = 64;            ///< a swizzled row of 128 bytes
inline constexpr int kSlabRowBytes = 128;
inline constexpr int kSlabThreads = 256;  ///< that load x and finish; one more warp fetches the weights
inline constexpr int kSlabMultiplyingWarps = 4;  ///< the first ones
inline constexpr int kSlabGroups = 4;            ///< of chunks, that a block waits for one after the other
/// A block whose sums do not fit behind its inputs in so much shared memory receives them where its inputs
/// were. So the slabs of two neighbouring products fit on a multiprocessor.
inline constexpr int kSlabSharedWithInbox = 84 << 10;

/// Neighbouring columns of the residual stream whose squares are added up to one float.
inline constexpr int kSlabSquaresPerSum = 16;
/// The factors that a consumed norm gives a block's rows; the block has a pair for a cluster at least.
inline constexpr int kSlabFactorBytes = kSlabMostRows / 2 * 4;
/// Sums of squares of a row that a lane adds up, in fours that are four fours apart.
inline constexpr int kSlabFoursOfSquares = 4;
constexpr int slab_square_sums(int cols) { return padded(cols) / kSlabSquaresPerSum; }
constexpr bool slabs_halve_norms_of(int cols) {
  return slab_square_sums(cols) % 4 == 0 && slab_square_sums(cols) <= 16 * kSlabFoursOfSquares;
}

/// A compiled kernel.
struct SlabKernel {
  Ending ending;
  int outputs;  ///< of a cluster
  int cluster;  ///< blocks that share the inputs
  bool consumes_halved_norm;

  constexpr bool operator==(const SlabKernel&) const = default;
};
/// Cut for ERNIE-4.5-0.3B on 132 multiprocessors. Other products run where all of their blocks fit the GPU at
/// once.
inline constexpr SlabKernel kSlabKernels[] = {
    {Ending::add, 80, 8, false},    {Ending::qkv, 64, 3, false},   {Ending::qkv, 64, 3, true},
    {Ending::swiglu, 96, 2, false}, {Ending::swiglu, 96, 2, true},
};

/// Clusters of so many blocks, at most, that have multiprocessors of their own. Larger ones leave some
/// multiprocessors of a partition unused.
constexpr int slab_clusters(int multiprocessors, int cluster) {
  return (cluster > 2 ? multiprocessors * 10 / 11 : multiprocessors) / cluster;
}

/// First chunk of a block's share of the inputs.
constexpr int slab_first_chunk(int chunks, int rank, int cluster) { return chunks * rank / cluster; }
/// First of a block's chunks in a group. The last group is no larger than the first, whose place it takes.
constexpr int slab_group_begin(int chunks, int group) {
  return (chunks * group + kSlabGroups - 1) / kSlabGroups;
}
/// Chunks of x that have places.
constexpr int slab_places(int chunks) { return slab_group_begin(chunks, kSlabGroups - 1); }
constexpr int slab_place(int chunks, int q) { return q < slab_places(chunks) ? q : q - slab_places(chunks); }
/// Bytes of a chunk of x: the rows that are there, in eights. The instruction reads 64; what it makes of the
/// others is not used.
constexpr int slab_x_box_bytes(int rows) { return (rows + 7) / 8 * 8 * kSlabRowBytes; }
/// Byte of a box of weights or of x where the 16-byte piece `piece` of a row lies.
constexpr int slab_piece_at(int row, int piece) { return row * kSlabRowBytes + (piece ^ row % 8) * 16; }

// wgmma leaves a lane, of its warp's 16 rows and of each eight outputs, the outputs 2 (lane % 4) and the next
// of rows lane / 4 and 8 further. It swaps two of the four with lane ^ 1, and has then four outputs of one
// row.
constexpr int slab_sent_row(int warp, int lane) { return warp * 16 + lane / 4 + lane % 2 * 8; }
constexpr int slab_sent_output(int lane) { return lane % 4 / 2 * 4; }  ///< the first, of each eight

/// What the host, the kernel and the test of both compute alike.
template <SlabKernel kKernel>
struct SlabShape {
  static constexpr int kCluster = kKernel.cluster, kOutputs = kKernel.outputs;
  static constexpr bool kPairs = kKernel.ending == Ending::swiglu;
  static constexpr int kBoxBytes = kOutputs * kSlabRowBytes;  ///< of a chunk of weights

  // Row n of x is finished by block n % kCluster of the cluster, where it is local row n / kCluster.
  static constexpr int rows_of(int rank, int rows) { return (rows - rank + kCluster - 1) / kCluster; }
  /// Index of a float in the inbox of the block that finishes row n of so many: from block `sender`, of
  /// output m.
  static constexpr int inbox_index(int rows, int sender, int n, int m) {
    return (sender * rows_of(0, rows) + n / kCluster) * kOutputs + m;
  }

  // A thread finishes four outputs (of gate|up four gates and their ups) of one row, in each pass.
  static constexpr int kFours = kOutputs / (kPairs ? 8 : 4);  ///< of a row
  static constexpr int kRowsPerPass = kSlabThreads / kFours;
  static constexpr int kPasses = (rows_of(0, kSlabMostRows) + kRowsPerPass - 1) / kRowsPerPass;
  static_assert(kFours % 4 == 0, "four neighbouring lanes have the same row");
  static_assert(rows_of(0, kSlabMostRows) * 4 <= kSlabFactorBytes);
  /// kSlabMostRows: the thread finishes nothing.
  static constexpr int finished_row(int rank, int pass, int thread) {
    const int row = thread / kFours;
    return row < kRowsPerPass ? rank + (pass * kRowsPerPass + row) * kCluster : kSlabMostRows;
  }
  static constexpr int finished_output(int thread) {
    const int four = thread % kFours;
    return kPairs ? four / 2 * 16 + four % 2 * 4 : four * 4;
  }
};

struct SlabPlan {
  SlabKernel kernel{};
  int blocks = 0;  ///< launched; the last cluster may have no outputs. 0: slabs do not take this product
  int block_chunks = 0;  ///< of kSlabChunkInputs inputs, of a block, at most
  /// A block's shared memory holds its x by place, its weights by chunk, the sums that its cluster sends it,
  /// and barriers with factors of its rows behind them.
  int weights_offset = 0;
  int inbox_offset = 0;
  bool inbox_overwrites_inputs = false;
  int barriers_offset = 0;
  int shared_bytes = 0;
  int copy_interval_cycles = 0;  ///< as of strips, from one KiB of weights to the next

  explicit operator bool() const { return blocks > 0; }
};

/// Takes dense products of bf16 weights with 9 to 64 rows and three endings, all of whose blocks run at once:
/// `add` can produce a halved norm, the other two can consume one. The GPU has to have clusters, and not be
/// batch-invariant: up to eight rows a product has other sums.
inline SlabPlan slab_plan(const LinearShape& shape, const GpuTraits& gpu) {
  const bool consumes = shape.consumes_halved_norm, produces = shape.produces_halved_norm;
  if (!gpu.features.clusters || gpu.batch_invariant || shape.grouped() ||
      shape.format != WeightFormat(DType::bf16) || shape.rows < kSlabLeastRows ||
      shape.rows > kSlabMostRows || (shape.ending == Ending::qkv && shape.head_dim % 4 != 0) ||
      (consumes && !slabs_halve_norms_of(shape.inputs)) ||
      (produces && (shape.ending != Ending::add || !slabs_halve_norms_of(shape.outputs)))) {
    return {};
  }
  const auto kernel = std::find_if(
      std::begin(kSlabKernels), std::end(kSlabKernels),
      [&](const SlabKernel& k) { return k.ending == shape.ending && k.consumes_halved_norm == consumes; });
  if (kernel == std::end(kSlabKernels)) return {};
  const int chunks = (shape.stride() + kSlabChunkInputs - 1) / kSlabChunkInputs;
  const int clusters = (padded(shape.outputs) + kernel->outputs - 1) / kernel->outputs;
  const int room = slab_clusters(gpu.multiprocessors, kernel->cluster);
  if (chunks < kernel->cluster || clusters > room) return {};
  SlabPlan plan{.kernel = *kernel,
                // As of strips, no multiprocessor is left without a block, if pairs fill them all.
                .blocks = (kernel->cluster > 2 ? clusters : room) * kernel->cluster,
                .block_chunks = (chunks + kernel->cluster - 1) / kernel->cluster,
                .copy_interval_cycles = strip_copy_interval(gpu, consumes, shape.rows)};
  plan.weights_offset = slab_places(plan.block_chunks) * slab_x_box_bytes(shape.rows);
  const int inputs = plan.weights_offset + plan.block_chunks * kernel->outputs * kSlabRowBytes;
  const int local_rows = (shape.rows + kernel->cluster - 1) / kernel->cluster;
  const int inbox = kernel->cluster * local_rows * kernel->outputs * 4;
  const int barriers = (plan.block_chunks + 1) * 8 + kSlabFactorBytes;
  plan.inbox_overwrites_inputs = inputs + inbox + barriers > kSlabSharedWithInbox;
  plan.inbox_offset = plan.inbox_overwrites_inputs ? 0 : inputs;
  plan.barriers_offset = std::max(inputs, plan.inbox_offset + inbox);
  plan.shared_bytes = plan.barriers_offset + barriers;
  return plan.shared_bytes <= gpu.block_shared_bytes ? plan : SlabPlan{};
}

}  // namespace troupe::kernels::cuda
