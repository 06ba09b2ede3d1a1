#pragma once
// What a picture is and how large it will be, read from the head of its file without decoding anything. The
// server's own processes call this alone; decoders run in `troupe media` (media/media_main.h).
//
// The format is that of the first bytes: the type that a client states is not looked at. Messages of refusals
// continue the name of the field that held the picture ("is a BMP picture; ...").
#include <cstdint>
#include <string>

#include "base/status.h"
#include "media/header/byte_reader.h"

namespace troupe::media {

enum class PictureKind : std::uint8_t { jpeg, png, webp, gif };
const char* to_string(PictureKind kind);

struct PictureBounds {
  std::uint64_t bytes = std::uint64_t{64} << 20;  ///< of the file
  std::int64_t pixels = 33'177'600;               ///< 7680 x 4320
  std::int64_t side = 65'535;                     ///< pixels; no other format than PNG knows longer ones
};

/// Width and height are those of the pixels as stored, 1 or more.
struct PictureHeader {
  PictureKind kind = PictureKind::jpeg;
  int width = 0;
  int height = 0;
  int orientation = 1;  ///< EXIF's, 1 to 8

  /// True when the picture is shown with its sides swapped.
  bool swaps_sides() const { return orientation >= 5; }
  int shown_width() const { return swaps_sides() ? height : width; }
  int shown_height() const { return swaps_sides() ? width : height; }

  friend bool operator==(const PictureHeader&, const PictureHeader&) = default;
};

/// Reads `bytes` from the start to the last piece of metadata that can turn the picture; its cost is bounded
/// by the number of the file's parts. invalid_argument with one of these reasons:
///   invalid_image      empty, cut, damaged, or no picture at all
///   unsupported_image  a format or a variant of one that is not decoded, by its name
///   image_too_large    over one of `bounds`
Result<PictureHeader> read_picture_header(Bytes bytes, const PictureBounds& bounds = {});

/// Refusals of pictures, with their reasons.
Status invalid_image(std::string message);
Status unsupported_image(std::string message);
Status image_too_large(std::string message);

}  // namespace troupe::media
