#include <string>

#include "media/header/formats.h"
#include "media/header/orientation.h"

namespace troupe::media {
namespace {

constexpr std::uint32_t kStartOfScan = 0xDA, kEndOfImage = 0xD9, kApp1 = 0xE1;

/// Markers that no length follows.
bool stands_alone(std::uint32_t marker) { return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8); }

bool starts_frame(std::uint32_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/// What the frame header (SOFn) states. The process that decodes knows baseline, extended and progressive
/// Huffman coding of 8 bits.
Result<StatedSize> read_frame(std::uint32_t marker, Bytes segment) {
  if (marker > 0xC2) {
    const char* name = marker >= 0xC9   ? "arithmetic coding"
                       : marker == 0xC3 ? "lossless coding"
                                        : "hierarchical coding";
    return unsupported_image(std::string("is a JPEG picture with ") + name +
                             "; baseline and progressive ones are read");
  }
  const auto bits = number(segment, 0, 1, ByteOrder::big), height = number(segment, 1, 2, ByteOrder::big),
             width = number(segment, 3, 2, ByteOrder::big),
             components = number(segment, 5, 1, ByteOrder::big);
  if (!bits || !height || !width || !components) return cut_header(PictureKind::jpeg);
  if (*bits != 8)
    return unsupported_image("is a JPEG picture of " + std::to_string(*bits) + " bits a sample; 8 are read");
  if (*components != 1 && *components != 3 && *components != 4)
    return unsupported_image("is a JPEG picture with " + std::to_string(*components) +
                             " components; 1, 3 and 4 are read");
  if (*height == 0)
    return unsupported_image(
        "is a JPEG picture that states its height behind its pixels; it must stand in the header");
  return StatedSize{*width, *height};
}

}  // namespace

Result<StatedSize> read_jpeg_header(Bytes file) {
  OrientationFinder found;
  std::optional<StatedSize> frame;
  for (std::uint64_t at = 2;;) {
    // As decoders do: anything before 0xFF is skipped, and any number of 0xFF may stand before a marker.
    while (at < file.size() && file[at] != 0xFF) ++at;
    while (at < file.size() && file[at] == 0xFF) ++at;
    const auto marker = number(file, at++, 1, ByteOrder::big);
    if (!marker) return cut_header(PictureKind::jpeg);
    if (*marker == 0 || stands_alone(*marker)) continue;
    if (*marker == kEndOfImage) return invalid_image("is a JPEG picture without pixels");
    if (*marker == kStartOfScan) break;
    const auto length = number(file, at, 2, ByteOrder::big);
    if (!length) return cut_header(PictureKind::jpeg);
    if (*length < 2) return damaged_header(PictureKind::jpeg);
    const auto segment = part(file, at + 2, *length - 2);
    if (!segment) return cut_header(PictureKind::jpeg);
    at += *length;
    if (*marker == kApp1) {
      constexpr std::string_view kExif("Exif\0\0", 6), kXmp("http://ns.adobe.com/xap/1.0/\0", 29);
      if (stands_at(*segment, 0, kExif) && !found.exif) found.exif = exif_orientation(*segment);
      if (stands_at(*segment, 0, kXmp)) found.xmp = xmp_orientation(segment->subspan(kXmp.size()));
    } else if (starts_frame(*marker)) {
      if (frame) return invalid_image("is a JPEG picture with two frame headers");
      const auto read = read_frame(*marker, *segment);
      if (!read.ok()) return read.status();
      frame = *read;
    }
  }
  if (!frame) return invalid_image("is a JPEG picture without a frame header");
  frame->orientation = found.orientation();
  return *frame;
}

}  // namespace troupe::media
