#pragma once
// Which rows go to which expert: from the router's weights to the row lists of the grouped products.
//
// Scores: logits in fp32. Choice: softmax, top-k and weights, a warp a row; in a tile of rows each choice
// also gets its rank among the tile's rows with the same expert. Placing: with the tiles' counts summed up, a
// choice's place is its expert's offset + the rows of earlier tiles + its rank. So the rows of a group rise,
// and nothing hangs on which thread was first. For a decode batch in bf16 all of it is one kernel.
#include <cstddef>
#include <cstdint>

#include "gpu/cuda.h"
#include "kernels/moe.h"

namespace troupe::kernels::cuda {

/// Device memory, all of it written by route(). Groups are the experts, then the shared slices.
struct Routing {
  std::int32_t* offsets = nullptr;  ///< (experts + shared + 1) first place of each group
  std::int32_t* gather = nullptr;   ///< by place: its row
  float* scale = nullptr;           ///< by place: the row's weight for the group
  std::int32_t* places = nullptr;   ///< (rows, top_k) by rising expert; -1 in padding rows. A row's place in
                                    ///< shared slice s is offsets[experts + s] + row
  // Working memory:
  float* logits = nullptr;  ///< (rows, padded(experts))
  std::uint32_t* choices =
      nullptr;                     ///< (rows, top_k) expert | rank in the tile << 16; kNobody in padding rows
  float* weights = nullptr;        ///< (rows, top_k)
  std::int32_t* counts = nullptr;  ///< (tiles, experts + 1) rows per expert; last: rows that count at all

  static constexpr std::uint32_t kNobody = ~0u;
};

/// Places that rows take at most.
inline int most_places(const Moe& op) { return op.rows * (op.top_k + op.shared); }

/// Bytes that the arrays take, a multiple of 256; sets them to lie at `memory` (null: only counts).
std::size_t lay_out(Routing& routing, const Moe& op, std::byte* memory);

void route(Cuda& device, const Moe& op, const Routing& routing);

}  // namespace troupe::kernels::cuda
