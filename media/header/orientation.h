#pragma once
// How a picture is to be turned before it is shown: EXIF's tag Orientation, 1 (as stored) to 8. 5 to 8 swap
// the sides.
#include <optional>

#include "media/header/byte_reader.h"

namespace troupe::media {

/// From EXIF data: a TIFF header and its first directory, with or without "Exif\0\0" before it. A value
/// outside of 1 to 8 counts as 1. Nothing when the tag is absent or damaged.
std::optional<int> exif_orientation(Bytes exif);

/// From an XMP packet, `tiff:Orientation` as attribute or element. Counts where EXIF names none, as in
/// Pillow.
std::optional<int> xmp_orientation(Bytes xmp);

/// What a file's metadata say, gathered while its parts are walked.
struct OrientationFinder {
  std::optional<int> exif;
  std::optional<int> xmp;

  int orientation() const { return exif.value_or(xmp.value_or(1)); }
};

}  // namespace troupe::media
