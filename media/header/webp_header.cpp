#include "media/header/formats.h"
#include "media/header/orientation.h"

namespace troupe::media {
namespace {

constexpr std::uint64_t kFirstChunk = 12;
constexpr std::uint32_t kVp8lSignature = 0x2F;
constexpr std::uint32_t kHasExif = 0x08, kHasXmp = 0x04;

/// A lossy key frame: 3 bytes of frame tag, the start code 9D 01 2A, and 14 bits each of width and height.
Result<StatedSize> read_lossy(Bytes chunk) {
  const auto width = number(chunk, 6, 2, ByteOrder::little), height = number(chunk, 8, 2, ByteOrder::little);
  if (!width || !height) return cut_header(PictureKind::webp);
  if ((chunk[0] & 1) != 0 || !stands_at(chunk, 3, "\x9D\x01\x2A")) return damaged_header(PictureKind::webp);
  return StatedSize{*width & 0x3FFF, *height & 0x3FFF};
}

/// A lossless picture: a signature byte, then 14 bits each of width - 1 and height - 1.
Result<StatedSize> read_lossless(Bytes chunk) {
  const auto sizes = number(chunk, 1, 4, ByteOrder::little);
  if (!sizes) return cut_header(PictureKind::webp);
  if (chunk[0] != kVp8lSignature) return damaged_header(PictureKind::webp);
  return StatedSize{(*sizes & 0x3FFF) + 1, (*sizes >> 14 & 0x3FFF) + 1};
}

/// The canvas of an extended file, and what its metadata say of the orientation.
Result<StatedSize> read_extended(Bytes file, Bytes chunk) {
  const auto flags = number(chunk, 0, 1, ByteOrder::little), width = number(chunk, 4, 3, ByteOrder::little),
             height = number(chunk, 7, 3, ByteOrder::little);
  if (!flags || !width || !height) return cut_header(PictureKind::webp);
  OrientationFinder found;
  for (std::uint64_t at = kFirstChunk;;) {
    const auto size = number(file, at + 4, 4, ByteOrder::little);
    const auto part_of_file = size ? part(file, at + 8, *size) : std::nullopt;
    if (!part_of_file) break;  // what is missing is the decoder's to refuse
    if ((*flags & kHasExif) != 0 && !found.exif && stands_at(file, at, "EXIF"))
      found.exif = exif_orientation(*part_of_file);
    if ((*flags & kHasXmp) != 0 && !found.xmp && stands_at(file, at, "XMP "))
      found.xmp = xmp_orientation(*part_of_file);
    at += 8 + std::uint64_t{*size} + (*size & 1);
  }
  return StatedSize{std::int64_t{*width} + 1, std::int64_t{*height} + 1, found.orientation()};
}

}  // namespace

Result<StatedSize> read_webp_header(Bytes file) {
  const Bytes chunk = file.size() > kFirstChunk + 8 ? file.subspan(kFirstChunk + 8) : Bytes();
  if (chunk.empty()) return cut_header(PictureKind::webp);
  if (stands_at(file, kFirstChunk, "VP8 ")) return read_lossy(chunk);
  if (stands_at(file, kFirstChunk, "VP8L")) return read_lossless(chunk);
  if (stands_at(file, kFirstChunk, "VP8X")) return read_extended(file, chunk);
  return damaged_header(PictureKind::webp);
}

}  // namespace troupe::media
