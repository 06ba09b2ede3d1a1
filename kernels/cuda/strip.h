#pragma once
// Products of up to eight rows whose weights nearly fit the shared memory of the GPU: which they are, and how
// they are cut. kernels/linear_strip_cuda.cu says how they work.
#include <algorithm>

#include "kernels/cuda/layout.h"
#include "kernels/cuda/linear.h"

namespace troupe::kernels::cuda {

inline constexpr int kStripRows = 8;     ///< of x, at most
inline constexpr int kStripSetRows = 4;  ///< of x, that the tensor cores take at a time
inline constexpr int kStripWarps = 8;    ///< of a block
inline constexpr int kStripBox = 64;     ///< neighbouring inputs of a warp
inline constexpr int kStripPiece = kStripBox * kStripWarps;
inline constexpr int kStripPadding = 64;           ///< bytes behind a row of weights
inline constexpr int kStripHeaderBytes = 512;      ///< barriers and sums of squares
inline constexpr int kMostStripBytes = 113 << 10;  ///< of shared memory: two blocks on a multiprocessor

/// A kernel is made for so many eights of outputs and pieces of inputs, and serves fewer.
struct StripPlan {
  int height = 0;  ///< outputs of a block: a multiple of 4, of gate|up one of 16; 0: not for strips
  int eights = 0;  ///< of the kernel: 1, 2, 3, 4 or 6
  int pieces = 0;  ///< of the kernel: 2, 4, 5 or 6
  bool two_sets = false;
  /// A block's shared memory: the header, the norm's weights, the block's weights, and the sums of its warps,
  /// which take the weights' place where there is none of their own.
  int bytes = 0;
  int sums_at = 0;
  bool sums_over_weights = false;
};

/// The kernels that there are. More pieces are more of x in registers, in fp32 where a norm comes first; and
/// with many rows every block reads much of x.
constexpr bool has_strip_kernel(int eights, int pieces, bool two_sets, bool norm) {
  return eights * pieces <= 15 && pieces <= (norm ? 2 : two_sets ? 4 : 6);
}

/// Dense products in bf16, with few enough rows, inputs and outputs, three endings, and a norm that neither
/// adds nor picks. Says nothing of the GPU, which has to be a Hopper, and nothing of batch_invariant(), under
/// which a product must not depend on the number of rows. Found by trying, on an H200: a block a
/// multiprocessor, where that is not too much for a block, then half as many again, then twice as many.
inline StripPlan strip_plan(const Linear& linear, int multiprocessors) {
  const bool norm = linear.norm.weight != nullptr,
             plain = linear.norm.add == nullptr && linear.norm.pick == nullptr;
  const bool pairs = linear.ending == Ending::swiglu;
  const bool ending = linear.ending == Ending::qkv ? linear.kv.head_dim % 4 == 0
                                                   : pairs || (linear.ending == Ending::add && !norm);
  const int inputs = row_stride(linear.weight.inputs), outputs = padded(linear.weight.outputs);
  if (linear.weight.dtype != DType::bf16 || linear.groups.offsets != nullptr || linear.rows > kStripRows ||
      !ending || !plain || inputs % kStripBox != 0) {
    return {};
  }
  const int pieces = (inputs + kStripPiece - 1) / kStripPiece;
  StripPlan plan{.pieces = pieces <= 2   ? 2
                           : pieces <= 4 ? 4
                                         : pieces,
                 .two_sets = linear.rows > kStripSetRows};
  for (const int halves : {2, 3, 4}) {
    const int unit = pairs ? 16 : 4, blocks = multiprocessors * halves / 2;
    const int share = (outputs + blocks - 1) / blocks;
    plan.height = std::max((share + unit - 1) / unit * unit, 8);
    const int eights = (plan.height + 7) / 8;
    plan.eights = eights == 5 ? 6 : eights;
    if (plan.eights > 6 || !has_strip_kernel(plan.eights, plan.pieces, plan.two_sets, norm)) continue;
    const int first = kStripHeaderBytes + (norm ? inputs * 4 : 0);
    const int weights = plan.height * (inputs * 2 + kStripPadding);
    const int sums = kStripWarps * linear.rows * (plan.height + 4) * 4;
    plan.sums_over_weights = first + weights + sums > kMostStripBytes;
    plan.sums_at = plan.sums_over_weights ? first : first + weights;
    plan.bytes = plan.sums_over_weights ? first + std::max(weights, sums) : first + weights + sums;
    if (plan.bytes <= kMostStripBytes) return plan;
  }
  return {};
}

/// With linear.norm or without.
void run_strips(Cuda& device, const Linear& linear, const StripPlan& plan);

}  // namespace troupe::kernels::cuda
