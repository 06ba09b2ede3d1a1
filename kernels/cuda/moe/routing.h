#pragma once
// Assigns rows to experts: from the router's weights to the row lists of the grouped products.
//
// Scores: router logits in fp32. Selection: softmax, top-k and weights, one warp per row; each choice also
// gets its rank among the rows of its tile that chose the same expert. Placement: a choice's place in the
// grouped order is its expert's offset + the expert's rows in earlier tiles + its rank. So a group's rows are
// in rising order, and the result does not depend on the order of threads. For a decode batch in bf16 this is
// one kernel.
#include <cstddef>
#include <cstdint>

#include "gpu/cuda.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/moe.h"

namespace troupe::kernels::cuda {

/// Device memory written by route(). The groups are the experts in the stacks, then the slices of the
/// shared experts; with `shared_first` these come first.
struct Routing {
  std::int32_t* offsets = nullptr;  ///< (in_stacks() + shared + 1) the first place of each group
  std::int32_t* gather = nullptr;   ///< by place: the row
  float* scale = nullptr;           ///< by place: the weight of the row's expert
  std::int32_t* places = nullptr;   ///< (rows, top_k) in rising order of expert; -1 in padding rows and for
                                    ///< experts that are not in the stacks
  /// The slices' places are known before: row r of `rows` has place s · rows + r in slice s, padding rows
  /// too. Else it is offsets[in_stacks() + s] + r, for rows up to the last that is not padding.
  bool shared_first = false;
  /// route() writes `experts` and `weights` alone, of rows that one tile has.
  bool few = false;
  std::int32_t* experts = nullptr;  ///< (rows, top_k) groups of the chosen experts, in rising order; -1 as in
                                    ///< `places`
  float* factors = nullptr;         ///< (rows) of a halved norm: of the sums of products with op.x
  // Scratch:
  float* logits = nullptr;  ///< (rows, padded(experts))
  std::uint32_t* choices =
      nullptr;               ///< (rows, top_k) expert | rank in the tile << 16; kNoExpert in padding rows
  float* weights = nullptr;  ///< (rows, top_k)
  std::int32_t* counts =
      nullptr;  ///< (tiles, experts + 1) rows per expert; last column: rows that are not padding

  static constexpr std::uint32_t kNoExpert = ~0u;
};

/// Upper bound of the number of places.
inline int most_places(const Moe& op) { return op.rows * (op.top_k + op.shared); }

/// Returns the arrays' size in bytes, a multiple of 256, and points `routing` at them in `memory`. With null
/// it only computes the size.
std::size_t lay_out(Routing& routing, const Moe& op, std::byte* memory);

/// `consumed`: op.x is the first half of that norm; only of rows that one tile has. Then `factors` are
/// written.
void route(Cuda& device, const Moe& op, const Routing& routing, const HalvedNorm& consumed = {});

}  // namespace troupe::kernels::cuda
