#pragma once
// How large a picture becomes before it is cut into patches, and so how many tokens it takes. Known from the
// header alone.
#include <cstdint>

#include "base/patch_grid.h"
#include "base/status.h"

namespace troupe::media {

using troupe::kVideoPixels;
using troupe::PixelLimits;

/// The grid of a picture that is shown `width` x `height` pixels large (EXIF's orientation applied), as
/// FastDeploy sizes it: both sides become multiples of 28, the proportions are kept roughly, and the long
/// side is at most 200 times the short one. invalid_argument (image_too_large where the picture would have to
/// shrink, else image_too_small) when no such size is within `limits`; the message continues the name of the
/// picture's field.
Result<PatchGrid> grid_of(std::int64_t width, std::int64_t height, const PixelLimits& limits);

}  // namespace troupe::media
