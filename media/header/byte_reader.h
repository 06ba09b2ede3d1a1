#pragma once
// Numbers out of bytes that a client sent. Every read is bounded: what lies outside is absent, never read.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace troupe::media {

using Bytes = std::span<const std::uint8_t>;

enum class ByteOrder : std::uint8_t { little, big };

/// The `size` bytes from `offset` on; nothing when they are not all there.
inline std::optional<Bytes> part(Bytes bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) return std::nullopt;
  return bytes.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
}

/// An unsigned number of `size` (1 to 4) bytes; nothing when they are not all there.
inline std::optional<std::uint32_t> number(Bytes bytes, std::uint64_t offset, int size, ByteOrder order) {
  const auto found = part(bytes, offset, static_cast<std::uint64_t>(size));
  if (!found) return std::nullopt;
  std::uint32_t value = 0;
  for (int i = 0; i < size; ++i)
    value = value << 8 | (*found)[static_cast<std::size_t>(order == ByteOrder::big ? i : size - 1 - i)];
  return value;
}

inline std::string_view as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// True when these characters stand at `offset`.
inline bool stands_at(Bytes bytes, std::uint64_t offset, std::string_view text) {
  const auto found = part(bytes, offset, text.size());
  return found && as_text(*found) == text;
}

}  // namespace troupe::media
