#include "media/header/picture_header.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "media/header/formats.h"

namespace troupe::media {
namespace {

constexpr std::string_view kRead = "JPEG, PNG, WebP and GIF are read";

std::optional<PictureKind> kind_of(Bytes file) {
  if (stands_at(file, 0, "\xFF\xD8\xFF")) return PictureKind::jpeg;
  if (stands_at(file, 0, "\x89PNG\r\n\x1A\n")) return PictureKind::png;
  if (stands_at(file, 0, "RIFF") && stands_at(file, 8, "WEBP")) return PictureKind::webp;
  if (stands_at(file, 0, "GIF87a") || stands_at(file, 0, "GIF89a")) return PictureKind::gif;
  return std::nullopt;
}

/// The major brand of an ISO base media file ("ftyp" at byte 4); empty for other files.
std::string_view brand_of(Bytes file) {
  if (!stands_at(file, 4, "ftyp")) return {};
  const auto brand = part(file, 8, 4);
  return brand ? as_text(*brand) : std::string_view();
}

/// True for a text that begins as XML and soon names the element svg.
bool begins_as_svg(Bytes file) {
  std::string_view text = as_text(file.first(std::min<std::size_t>(file.size(), 1024)));
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start == text.npos || text[start] != '<') return false;
  return text.find("<svg") != text.npos;
}

/// The name, with its article, of a known format that is not decoded; empty for what is no picture at all.
std::string_view name_of_other(Bytes file) {
  const std::string_view brand = brand_of(file);
  if (brand == "avif" || brand == "avis") return "an AVIF picture";
  if (brand.starts_with("hei") || brand.starts_with("hev") || brand == "mif1" || brand == "msf1")
    return "a HEIF picture";
  if (!brand.empty()) return "an MP4 video";
  if (stands_at(file, 0, std::string_view("II*\0", 4)) || stands_at(file, 0, std::string_view("MM\0*", 4)) ||
      stands_at(file, 0, std::string_view("II+\0", 4)) || stands_at(file, 0, std::string_view("MM\0+", 4)))
    return "a TIFF picture";
  if (stands_at(file, 0, "\xFF\x0A") || stands_at(file, 0, std::string_view("\0\0\0\x0CJXL ", 8)))
    return "a JPEG XL picture";
  if (stands_at(file, 0, std::string_view("\0\0\0\x0CjP  ", 8)) || stands_at(file, 0, "\xFF\x4F\xFF\x51"))
    return "a JPEG 2000 picture";
  if (stands_at(file, 0, "BM")) return "a BMP picture";
  if (stands_at(file, 0, std::string_view("\0\0\1\0", 4))) return "an ICO picture";
  if (stands_at(file, 0, "%PDF-")) return "a PDF document";
  if (stands_at(file, 0, "\x1A\x45\xDF\xA3")) return "a Matroska or WebM video";
  if (stands_at(file, 0, "RIFF") && stands_at(file, 8, "AVI ")) return "an AVI video";
  if (begins_as_svg(file)) return "an SVG drawing";
  return {};
}

Result<StatedSize> read_size(PictureKind kind, Bytes file) {
  switch (kind) {
    case PictureKind::jpeg: return read_jpeg_header(file);
    case PictureKind::png: return read_png_header(file);
    case PictureKind::webp: return read_webp_header(file);
    case PictureKind::gif: return read_gif_header(file);
  }
  return invalid_image("is no picture");
}

}  // namespace

const char* to_string(PictureKind kind) {
  switch (kind) {
    case PictureKind::jpeg: return "JPEG";
    case PictureKind::png: return "PNG";
    case PictureKind::webp: return "WebP";
    case PictureKind::gif: return "GIF";
  }
  return "?";
}

Status invalid_image(std::string message) { return invalid(std::move(message), {}, "invalid_image"); }
Status unsupported_image(std::string message) { return invalid(std::move(message), {}, "unsupported_image"); }
Status image_too_large(std::string message) { return invalid(std::move(message), {}, "image_too_large"); }

Result<PictureHeader> read_picture_header(Bytes file, const PictureBounds& bounds) {
  if (file.empty()) return invalid_image("is empty: 0 bytes are no picture");
  if (file.size() > bounds.bytes)
    return image_too_large("has " + std::to_string(file.size()) + " bytes; a picture may have " +
                           std::to_string(bounds.bytes));
  const auto kind = kind_of(file);
  if (!kind) {
    const std::string_view other = name_of_other(file);
    if (other.empty())
      return invalid_image("is no picture: its first bytes are those of no known format; " +
                           std::string(kRead));
    return unsupported_image("is " + std::string(other) + "; " + std::string(kRead));
  }
  const auto size = read_size(*kind, file);
  if (!size.ok()) return size.status();
  if (size->width < 1 || size->height < 1)
    return invalid_image("is a " + std::string(to_string(*kind)) + " picture of " +
                         std::to_string(size->width) + " x " + std::to_string(size->height) +
                         " pixels; each side must have 1 or more");
  const std::string sides = "is " + std::to_string(size->width) + " x " + std::to_string(size->height);
  // Sides are at most 2^32 - 1: the product cannot overflow an unsigned 64-bit number.
  const std::uint64_t pixels =
      static_cast<std::uint64_t>(size->width) * static_cast<std::uint64_t>(size->height);
  if (pixels > static_cast<std::uint64_t>(bounds.pixels))
    return image_too_large(sides + " = " + std::to_string(pixels) + " pixels; a picture may have " +
                           std::to_string(bounds.pixels));
  if (std::max(size->width, size->height) > bounds.side)
    return image_too_large(sides + " pixels; a side may have " + std::to_string(bounds.side));
  return PictureHeader{*kind, static_cast<int>(size->width), static_cast<int>(size->height),
                       size->orientation};
}

}  // namespace troupe::media
