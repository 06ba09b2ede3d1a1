#include "media/prepare.h"

#include <new>

#include "media/decode/decode.h"
#include "media/resize/patches.h"

namespace troupe::media {

Result<PatchGrid> prepare_picture(Bytes file, const PictureBounds& bounds, const PixelLimits& limits,
                                  std::span<std::uint8_t> patches) {
  const auto header = read_picture_header(file, bounds);
  if (!header.ok()) return header.status();
  const auto grid = grid_of(header->shown_width(), header->shown_height(), limits);
  if (!grid.ok()) return grid.status();
  if (patches.size() != patches_bytes(*grid))
    return failure(Code::internal, "has another number of patches than there is room for");
  const auto picture = decode(file, *header);
  if (!picture.ok()) return picture.status();
  try {
    resize_to_patches(*picture, *grid, patches);
  } catch (const std::bad_alloc&) {
    return failure(Code::unavailable, "cannot be resized: memory does not suffice; try again later");
  }
  return *grid;
}

}  // namespace troupe::media
