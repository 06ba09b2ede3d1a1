#include <algorithm>

#include "media/header/formats.h"

namespace troupe::media {
namespace {

constexpr std::uint8_t kExtension = 0x21, kImage = 0x2C;
constexpr std::uint64_t kScreenEnd = 13;

std::uint64_t table_bytes(std::uint32_t flags) {
  return (flags & 0x80) != 0 ? std::uint64_t{6} << (flags & 7) : 0;
}

}  // namespace

Result<StatedSize> read_gif_header(Bytes file) {
  const auto width = number(file, 6, 2, ByteOrder::little), height = number(file, 8, 2, ByteOrder::little),
             flags = number(file, 10, 1, ByteOrder::little);
  if (!width || !height || !flags) return cut_header(PictureKind::gif);
  for (std::uint64_t at = kScreenEnd + table_bytes(*flags);;) {
    const auto kind = number(file, at, 1, ByteOrder::little);
    if (!kind) return cut_header(PictureKind::gif);
    if (*kind == kImage) {
      const auto left = number(file, at + 1, 2, ByteOrder::little),
                 top = number(file, at + 3, 2, ByteOrder::little),
                 columns = number(file, at + 5, 2, ByteOrder::little),
                 rows = number(file, at + 7, 2, ByteOrder::little);
      if (!left || !top || !columns || !rows) return cut_header(PictureKind::gif);
      if (*columns == 0 || *rows == 0)
        return invalid_image("is a GIF picture whose first frame has no pixels");
      return StatedSize{std::max(*width, *left + *columns), std::max(*height, *top + *rows)};
    }
    if (*kind != kExtension) return invalid_image("is a GIF picture without a frame");
    at += 2;
    for (bool more = true; more;) {  // blocks of an extension; an empty one ends it
      const auto size = number(file, at, 1, ByteOrder::little);
      if (!size) return cut_header(PictureKind::gif);
      at += 1 + std::uint64_t{*size};
      more = *size != 0;
    }
  }
}

}  // namespace troupe::media
