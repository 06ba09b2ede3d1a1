#include "media/header/orientation.h"

namespace troupe::media {
namespace {

constexpr std::uint32_t kOrientationTag = 0x0112;
constexpr std::uint64_t kEntryBytes = 12;

std::optional<int> in_range(std::optional<std::uint32_t> value) {
  if (!value || *value < 1 || *value > 8) return std::nullopt;
  return static_cast<int>(*value);
}

/// Bytes of a whole number of this TIFF type; 0 for other types.
int size_of_type(std::uint32_t type) {
  switch (type) {
    case 1: return 1;  // BYTE
    case 3: return 2;  // SHORT
    case 4: return 4;  // LONG
    default: return 0;
  }
}

}  // namespace

std::optional<int> exif_orientation(Bytes exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  if (stands_at(exif, 0, kPrefix)) exif = exif.subspan(kPrefix.size());
  const bool little = stands_at(exif, 0, "II");
  if (!little && !stands_at(exif, 0, "MM")) return std::nullopt;
  const ByteOrder order = little ? ByteOrder::little : ByteOrder::big;
  if (number(exif, 2, 2, order) != 42u) return std::nullopt;
  const auto directory = number(exif, 4, 4, order);
  if (!directory) return std::nullopt;
  const std::uint32_t entries = number(exif, *directory, 2, order).value_or(0);
  for (std::uint32_t i = 0; i < entries; ++i) {
    const auto entry = part(exif, *directory + 2ull + i * kEntryBytes, kEntryBytes);
    if (!entry) return std::nullopt;
    if (number(*entry, 0, 2, order) != kOrientationTag) continue;
    const int size = size_of_type(number(*entry, 2, 2, order).value_or(0));
    if (size == 0 || number(*entry, 4, 4, order) != 1u) return std::nullopt;
    return in_range(number(*entry, 8, size, order)).value_or(1);
  }
  return std::nullopt;
}

std::optional<int> xmp_orientation(Bytes xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  const std::string_view text = as_text(xmp);
  for (std::size_t at = text.find(kName); at != text.npos; at = text.find(kName, at + 1)) {
    std::string_view rest = text.substr(at + kName.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with('>')) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (rest.empty() || rest[0] < '0' || rest[0] > '9') continue;
    return in_range(static_cast<std::uint32_t>(rest[0] - '0'));
  }
  return std::nullopt;
}

}  // namespace troupe::media
