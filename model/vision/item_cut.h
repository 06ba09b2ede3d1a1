#pragma once
// How ranks cut an image or a video between them.
//
//   frames  of a video with at least as many pairs of frames as ranks: each encodes whole pairs
//   rows    else, of large frames: each has a piece of every frame's patches, with whole weights. A row needs
//           the others' keys and values in the attention alone.
//   whole   what is too small: every rank encodes it by itself.
//
// Rows are cut in units of kernels::kFrameQueries, which also hold the patches of a token together. A row's
// arithmetic does not know the cut, so it has the bits of one rank wherever a row's bits depend on that row
// alone.
#include <algorithm>
#include <cstdint>

#include "base/patch_grid.h"
#include "kernels/frame_attention.h"

namespace troupe::model {

enum class ItemCut : std::uint8_t { whole, rows, frames };

struct RowRange {
  int first = 0;
  int count = 0;
};

/// Rows of a frame that each rank has to get at least. With fewer, a product of a block has no tile for each
/// multiprocessor before it is cut.
inline constexpr int kLeastRowsOfARank = 8 * kernels::kFrameQueries;
static_assert(kernels::kFrameQueries % (kMergeSide * kMergeSide) == 0);

inline ItemCut cut_of(const PatchGrid& grid, int ranks, int least_rows = kLeastRowsOfARank) {
  if (ranks <= 1) return ItemCut::whole;
  if (grid.frames / kMergeFrames >= ranks) return ItemCut::frames;
  return grid.rows * grid.columns >= ranks * least_rows ? ItemCut::rows : ItemCut::whole;
}

/// The rank's rows of a frame, of which the first ranks have one unit less where they cannot have as many.
inline RowRange rows_of_rank(int rows, int rank, int ranks) {
  const int units = (rows + kernels::kFrameQueries - 1) / kernels::kFrameQueries;
  const auto begin = [&](int r) { return std::min(rows, units * r / ranks * kernels::kFrameQueries); };
  return {begin(rank), begin(rank + 1) - begin(rank)};
}

}  // namespace troupe::model
