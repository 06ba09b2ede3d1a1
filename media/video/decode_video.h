#pragma once
// Videos, by libav. Its packages are large and optional, so the libraries are opened when the process starts,
// and only in `troupe media`.
#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "media/header/byte_reader.h"
#include "media/header/picture_header.h"
#include "media/picture.h"
#include "media/video/sampling.h"

namespace troupe::media {

/// Opens the libraries; before the sandbox. unsupported, with a sentence that names what is missing.
Status open_video_libraries();

/// What the file says of its first video stream, and how many pictures it holds. Reads the whole file, and
/// decodes only what the rest of its header needs. Requires open_video_libraries(). Messages continue the
/// name of the video's field:
///   invalid_video      no video, cut before its first frame, damaged, or without frames
///   unsupported_video  a container or codec that is not read, by its name
///   image_too_large    a frame over one of `bounds`
Result<VideoFacts> probe_video(Bytes file, const PictureBounds& bounds);

/// Takes one frame as it is shown, upright. Its index in the file may differ from the one that was asked for:
/// of a file that ends early the last one stands for those that are missing.
using TakeFrame = std::function<Status(std::size_t number, std::int32_t index, Picture& frame)>;

/// Decodes from the beginning and hands over the frames `wanted`, which ascend. `facts` are those of
/// probe_video() for this file. Errors as there; what `take` returns ends it.
Status decode_video(Bytes file, const VideoFacts& facts, std::span<const std::int32_t> wanted,
                    const TakeFrame& take);

}  // namespace troupe::media
