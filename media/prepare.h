#pragma once
// The whole way of a picture, from the bytes of its file to patches. Runs decoders: see decode/decode.h.
#include "base/status.h"
#include "media/header/picture_header.h"
#include "media/pixel_grid.h"
#include "media/video/sampling.h"
#include "media/video/stamp.h"

namespace troupe::media {

/// Decodes the frames of `file` that `sampling` takes, draws their times into them with `stamp`, resizes and
/// cuts them. `patches` has exactly the bytes of the patches of video_grid() for this file. Returns that
/// grid, or why there is none; the message continues the name of the video's field.
Result<PatchGrid> prepare_video(Bytes file, const PictureBounds& bounds, const PixelLimits& limits,
                                const VideoSampling& sampling, Stamp& stamp, std::span<std::uint8_t> patches);

/// Decodes `file`, resizes and cuts it. `patches` has exactly the bytes of the patches of grid_of() for this
/// file. Returns that grid, or why there is none; the message continues the name of the picture's field.
Result<PatchGrid> prepare_picture(Bytes file, const PictureBounds& bounds, const PixelLimits& limits,
                                  std::span<std::uint8_t> patches);

}  // namespace troupe::media
