#pragma once
// What threads do with the pictures of requests: from base64 to a measured file, and from decoded patches to
// a place in the region. Pure but for memory.
#include <string_view>

#include "actors/cache/block_hash.h"
#include "actors/media/media_book.h"
#include "actors/media/media_process.h"
#include "ipc/patch_writer.h"

namespace troupe {

/// Decodes base64 into a sealed memory file. invalid_image names the offset; unavailable where memory does
/// not suffice.
Result<MediaFile> file_of(std::string_view base64);

/// What the header of a picture says. Not ok with the reasons of media/header/picture_header.h, or
/// unavailable where memory does not suffice.
MeasuredFile measure_picture(MediaFile file, const PixelLimits& limits, const media::PictureBounds& bounds,
                             const HashKey& key);
/// The same of base64.
MeasuredFile measure_file(std::string_view base64, const PixelLimits& limits,
                          const media::PictureBounds& bounds, const HashKey& key);

/// A video whose frames are pictures, in base64: one or more, all of one size.
MeasuredFile measure_frames(const std::vector<std::string>& frames, const PixelLimits& limits,
                            const media::PictureBounds& bounds, const HashKey& key);

/// A video whose file says this of its frames.
MeasuredFile measure_video(MediaFile file, const media::VideoFacts& facts, const PixelLimits& limits,
                           const VideoSampling& sampling, const HashKey& key);

/// The name of a picture's contents: two pictures with the same name are the same to the model.
BlockHash contents_of(MediaKind kind, const PatchGrid& grid, std::span<const std::byte> patches,
                      const HashKey& key);

}  // namespace troupe
