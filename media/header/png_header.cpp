#include "media/header/formats.h"
#include "media/header/orientation.h"

namespace troupe::media {
namespace {

constexpr std::uint64_t kSignatureBytes = 8, kChunkOverhead = 12, kHeaderBytes = 13;

/// The text of an uncompressed XMP packet in an iTXt chunk; nothing for another chunk of text.
std::optional<Bytes> xmp_of(Bytes chunk) {
  constexpr std::string_view kKeyword("XML:com.adobe.xmp\0", 18);
  if (!stands_at(chunk, 0, kKeyword) || number(chunk, kKeyword.size(), 1, ByteOrder::big) != 0u)
    return std::nullopt;
  return chunk.subspan(kKeyword.size());
}

}  // namespace

Result<StatedSize> read_png_header(Bytes file) {
  const auto length = number(file, kSignatureBytes, 4, ByteOrder::big);
  if (!length || !part(file, kSignatureBytes, kHeaderBytes + kChunkOverhead))
    return cut_header(PictureKind::png);
  if (*length != kHeaderBytes || !stands_at(file, kSignatureBytes + 4, "IHDR"))
    return damaged_header(PictureKind::png);
  StatedSize out{*number(file, 16, 4, ByteOrder::big), *number(file, 20, 4, ByteOrder::big)};
  // eXIf may stand behind the pixels too.
  OrientationFinder found;
  for (std::uint64_t at = kSignatureBytes + kHeaderBytes + kChunkOverhead;;) {
    const auto size = number(file, at, 4, ByteOrder::big);
    const auto chunk = size ? part(file, at + 8, *size) : std::nullopt;
    if (!chunk || stands_at(file, at + 4, "IEND")) break;  // what is missing is the decoder's to refuse
    if (stands_at(file, at + 4, "eXIf")) found.exif = exif_orientation(*chunk);
    if (stands_at(file, at + 4, "iTXt")) {
      if (const auto xmp = xmp_of(*chunk)) found.xmp = xmp_orientation(*xmp);
    }
    at += *size + kChunkOverhead;
  }
  out.orientation = found.orientation();
  return out;
}

}  // namespace troupe::media
