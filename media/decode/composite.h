#pragma once
#include "media/picture.h"

namespace troupe::media {

/// Lays pixels whose fourth byte is their opacity on white, rounded as Pillow rounds.
void lay_on_white(Picture& picture);

/// The picture as EXIF's `orientation`, 1 to 8, wants it shown.
Picture oriented(Picture picture, int orientation);

}  // namespace troupe::media
