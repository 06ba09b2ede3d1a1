#pragma once
// Products of up to eight rows whose weights nearly fit the shared memory of the GPU: which they are, and how
// they are cut. kernels/cuda/product/strip_block.cuh says how they work.
#include <algorithm>

#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/linear.h"

namespace troupe::kernels::cuda {

inline constexpr int kStripRows = 8;     ///< of x, at most
inline constexpr int kStripSetRows = 4;  ///< of x, that the tensor cores take at a time
inline constexpr int kStripWarps = 8;    ///< of a block
inline constexpr int kStripBox = 64;     ///< neighbouring inputs of a warp
inline constexpr int kStripPiece = kStripBox * kStripWarps;
inline constexpr int kStripPadding = 64;  ///< bytes behind a row of weights
inline constexpr int kStripHeaderBytes = 64 + kStripRows * kStripWarps * 4;  ///< barriers and squares of rows
inline constexpr int kStripInboxBytes = kStripRows * 24 * 4;  ///< of a cluster's block: the most sums it gets
inline constexpr int kMostStripBytes = 113 << 10;  ///< of shared memory: two blocks on a multiprocessor

/// A kernel is made for so many eights of outputs and pieces of inputs, and serves fewer.
struct StripPlan {
  /// Outputs of a block: a multiple of 4, of gate|up one of 16, in a cluster one of 8; 0: not for strips.
  int height = 0;
  int split = 1;   ///< 2: two blocks, a cluster, have the same outputs, each with half of the inputs
  int eights = 0;  ///< of the kernel: 1, 2, 3, 4 or 6; in a cluster 2 to 6
  int pieces = 0;  ///< of the kernel: 2 or 4; in a cluster 2 or 3
  bool two_sets = false;
  /// A block's shared memory: the header, a cluster's inbox, the block's weights, and the sums of its warps,
  /// which take the weights' place where there is none of their own.
  int bytes = 0;
  int sums_at = 0;
  bool sums_over_weights = false;
  int blocks = 0;  ///< that are launched; the last may have no outputs
};

/// Of a block's shared memory, where its weights begin.
constexpr int strip_weights_at(int split) { return kStripHeaderBytes + (split == 2 ? kStripInboxBytes : 0); }

/// Neighbours of a row whose squares are one sum, and the sums of a row.
inline constexpr int kSquaresOf = 8;
constexpr int squares_of_row(int cols) { return padded(cols) / kSquaresOf; }

/// The kernels that there are. More pieces are more of x in registers.
constexpr bool has_strip_kernel(int split, int eights, int pieces, bool takes) {
  if (split == 2) return !takes && eights >= 2 && pieces <= 3;
  return eights != 5 && eights * pieces <= 12 && (pieces == 2 || (pieces == 4 && !takes));
}

/// Dense products in bf16, with few enough rows, inputs and outputs, and three endings, of which one can
/// leave a halved norm and two can take one. Says nothing of the GPU, which has to be a Hopper, and nothing
/// of batch_invariant(), under which a product must not depend on the number of rows. Found by trying, on an
/// H200: a block a multiprocessor, where that is not too much for a block, then half as many again, then
/// twice as many. Blocks that share the inputs read half of x each, which is worth the exchange of their sums
/// from 2,048 inputs.
inline StripPlan strip_plan(const Linear& linear, int multiprocessors) {
  const bool takes = linear.takes.weighted != nullptr, leaves = linear.leaves.weighted != nullptr;
  const bool pairs = linear.ending == Ending::swiglu, adds = linear.ending == Ending::add;
  const bool ending = linear.ending == Ending::qkv ? linear.kv.head_dim % 4 == 0 : pairs || (adds && !takes);
  const int inputs = row_stride(linear.weight.inputs), outputs = padded(linear.weight.outputs);
  StripPlan plan{.split = !pairs && !takes && inputs >= 2048 && inputs % (2 * kStripBox) == 0 ? 2 : 1,
                 .two_sets = linear.rows > kStripSetRows};
  const int part = inputs / plan.split, pieces = (part + kStripPiece - 1) / kStripPiece;
  if (linear.weight.dtype != DType::bf16 || linear.groups.offsets != nullptr || linear.rows > kStripRows ||
      !ending || (leaves && !adds) || part % kStripBox != 0) {
    return {};
  }
  plan.pieces = pieces <= 2 ? 2 : plan.split == 1 && pieces == 3 ? 4 : pieces;
  const int weights_at = strip_weights_at(plan.split);
  for (const int halves : {2, 3, 4}) {
    const int unit = pairs ? 16 : (leaves ? kSquaresOf : 4) * plan.split,
              strips = multiprocessors * halves / 2 / plan.split;
    const int share = (outputs + strips - 1) / strips;
    plan.height = std::max((share + unit - 1) / unit * unit, 8 * plan.split);
    plan.eights = (plan.height + 7) / 8;
    if (plan.eights == 5 && plan.split == 1) plan.eights = 6;
    if (plan.eights > 6 || !has_strip_kernel(plan.split, plan.eights, plan.pieces, takes)) continue;
    const int weights = plan.height * (part * 2 + kStripPadding);
    const int sums = kStripWarps * linear.rows * (plan.height + 4) * 4;
    plan.sums_over_weights = weights_at + weights + sums > kMostStripBytes;
    plan.sums_at = weights_at + (plan.sums_over_weights ? 0 : weights);
    plan.bytes = std::max(weights_at + weights, plan.sums_at + sums);
    if (plan.bytes > kMostStripBytes) continue;
    plan.blocks = (outputs + plan.height - 1) / plan.height * plan.split;
    // The next kernel's first blocks go where there is room, all of them to the multiprocessors that this one
    // leaves free, and are slow there. So it leaves none free.
    plan.blocks = (plan.blocks + multiprocessors - 1) / multiprocessors * multiprocessors;
    plan.blocks += plan.blocks % plan.split;
    return plan;
  }
  return {};
}

/// With halved norms or without.
void run_strips(Cuda& device, const Linear& linear, const StripPlan& plan);

}  // namespace troupe::kernels::cuda
