#pragma once
// The four readers behind read_picture_header(). Each is given a file that begins as one of its kind does,
// and yields width, height and orientation, or a refusal. Sizes may be any numbers that the file holds.
#include <cstdint>
#include <string>

#include "base/status.h"
#include "media/header/picture_header.h"

namespace troupe::media {

/// A picture's sides as its file states them.
struct StatedSize {
  std::int64_t width = 0;
  std::int64_t height = 0;
  int orientation = 1;
};

inline Status cut_header(PictureKind kind) {
  return invalid_image(std::string("is a ") + to_string(kind) + " picture whose header is cut");
}
inline Status damaged_header(PictureKind kind) {
  return invalid_image(std::string("is a ") + to_string(kind) + " picture with a damaged header");
}

Result<StatedSize> read_jpeg_header(Bytes file);
Result<StatedSize> read_png_header(Bytes file);
Result<StatedSize> read_webp_header(Bytes file);
/// The canvas, grown to hold the first frame.
Result<StatedSize> read_gif_header(Bytes file);

}  // namespace troupe::media
