#pragma once
// From pixels to the patches that a vision tower reads.
#include <cstdint>
#include <span>

#include "base/patch_grid.h"
#include "media/picture.h"
#include "media/resize/passes.h"

namespace troupe::media {

/// The place of the patch at (row, column) among the patches of a frame that is `columns` patches wide.
inline std::int64_t patch_index(int row, int column, int columns) {
  const std::int64_t token = std::int64_t(row / kMergeSide) * (columns / kMergeSide) + column / kMergeSide;
  return token * kMergeSide * kMergeSide + row % kMergeSide * kMergeSide + column % kMergeSide;
}

/// Bytes of all patches of a grid.
inline std::uint64_t patches_bytes(const PatchGrid& grid) {
  return static_cast<std::uint64_t>(grid.patches()) * kPatchBytes;
}

/// Resizes a picture to the grid of one frame (bicubic as Pillow's up to 12.3: horizontally first, to bytes,
/// then vertically) and cuts it into patches. `patches` has patches_bytes(grid) bytes. Throws std::bad_alloc.
void resize_to_patches(const Picture& picture, const PatchGrid& grid, std::span<std::uint8_t> patches,
                       const Passes& with = passes());

}  // namespace troupe::media
