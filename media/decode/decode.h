#pragma once
// Decoders of pictures. They read what clients sent with libraries that have had faults, so `troupe media`
// alone calls them, behind its sandbox.
#include "base/status.h"
#include "media/header/picture_header.h"
#include "media/picture.h"

namespace troupe::media {

/// The first frame of a file whose header is `header`, as it is shown: transparent parts on white, turned by
/// its orientation, its fourth byte without meaning. invalid_argument (invalid_image) when the file is cut or
/// damaged anywhere before the frame's last pixel: no part of a picture stands for the whole. unavailable
/// when memory does not suffice.
Result<Picture> decode(Bytes file, const PictureHeader& header);

// One format each: pixels as stored, already on white. They throw std::bad_alloc.
Result<Picture> decode_jpeg(Bytes file, const PictureHeader& header);
Result<Picture> decode_png(Bytes file, const PictureHeader& header);
Result<Picture> decode_webp(Bytes file, const PictureHeader& header);
Result<Picture> decode_gif(Bytes file, const PictureHeader& header);

/// "is a JPEG picture that cannot be decoded: WHY". `why` comes from a library.
Status damaged_picture(PictureKind kind, const char* why);

}  // namespace troupe::media
