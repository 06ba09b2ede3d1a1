#include "media/prepare.h"

#include <algorithm>
#include <new>

#include "media/decode/decode.h"
#include "media/resize/patches.h"
#include "media/video/decode_video.h"

namespace troupe::media {

Result<PatchGrid> prepare_video(Bytes file, const PictureBounds& bounds, const PixelLimits& limits,
                                const VideoSampling& sampling, Stamp& stamp,
                                std::span<std::uint8_t> patches) {
  const auto facts = probe_video(file, bounds);
  if (!facts.ok()) return facts.status();
  const auto frames = sampled_frames(*facts, sampling);
  if (!frames.ok()) return frames.status();
  const auto grid = video_grid(*facts, frames->size(), limits);
  if (!grid.ok()) return grid.status();
  if (patches.size() != patches_bytes(*grid))
    return failure(Code::internal, "has another number of patches than there is room for");
  const PatchGrid one{1, grid->rows, grid->columns};
  const std::size_t bytes = patches_bytes(one);
  try {
    Status status = decode_video(
        file, *facts, *frames, [&](std::size_t number, std::int32_t index, Picture& frame) -> Status {
          if (!stamp.draw(frame, stamp_text(time_of(index, *facts))))
            return failure(Code::internal, "has frames into which their times cannot be drawn");
          resize_to_patches(frame, one, patches.subspan(number * bytes, bytes));
          return {};
        });
    if (!status.ok()) return status;
  } catch (const std::bad_alloc&) {
    return failure(Code::unavailable, "cannot be resized: memory does not suffice; try again later");
  }
  if (frames->size() % kMergeFrames != 0)  // the last frame counts twice
    std::copy_n(patches.data() + (frames->size() - 1) * bytes, bytes,
                patches.data() + frames->size() * bytes);
  return *grid;
}

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
