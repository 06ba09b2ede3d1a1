#pragma once
// What threads do with the pictures of requests: from base64 to a measured file, and from decoded patches to
// a place in the region. Pure but for memory.
#include <string_view>

#include "actors/cache/block_hash.h"
#include "actors/media/media_book.h"
#include "actors/media/media_process.h"
#include "ipc/patch_writer.h"

namespace troupe {

/// Decodes base64 into a sealed memory file and reads what its header says. Not ok with the reasons of
/// media/header/picture_header.h, or unavailable where memory does not suffice.
MeasuredFile measure_file(std::string_view base64, const PixelLimits& limits,
                          const media::PictureBounds& bounds, const HashKey& key);

/// The name of a picture's contents: two pictures with the same name are the same to the model.
BlockHash contents_of(MediaKind kind, const PatchGrid& grid, std::span<const std::byte> patches,
                      const HashKey& key);

}  // namespace troupe
