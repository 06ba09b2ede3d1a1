#include "http/server/memory_share.h"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe::http {
namespace {

constexpr std::size_t kSmallBody = 64 << 10;
constexpr std::size_t kOneRead = 64 << 10;  // of input behind a small body that is buffered with it, at most
constexpr std::int64_t kRoomForSmall = 1 << 20;  // at least, beside the large ones

Status no_room() {
  return {Code::unavailable,
          "The server is reading as many large requests as --max-buffered-bytes allows: try again later",
          {},
          "too_many_bytes"};
}

}  // namespace

void MemoryShare::set_held(std::size_t bytes) {
  const auto now = static_cast<std::int64_t>(bytes);
  if (now == held_) return;
  const std::int64_t grown = now - std::exchange(held_, now);
  const std::int64_t all = totals_.held += grown;
  if (all > totals_.most_held) totals_.most_held = all;
}

void MemoryShare::set_unsent(std::size_t bytes) {
  const auto now = static_cast<std::int64_t>(bytes);
  if (now != unsent_) totals_.unsent += now - std::exchange(unsent_, now);
}

Status MemoryShare::check_length(std::uint64_t length) const {
  if (length <= kSmallBody) return {};
  if (length > static_cast<std::uint64_t>(room_)) return too_large(length);
  if (static_cast<std::int64_t>(length) + totals_.held - held_ > room_) return no_room();
  return {};
}

Status MemoryShare::check_received(std::uint64_t received) const {
  if (held_ > room_ && received > kSmallBody) return too_large(received);
  if (received > 0 && !has_room()) return no_room();
  return {};
}

bool MemoryShare::has_room() const {
  const bool small = held_ <= static_cast<std::int64_t>(kSmallBody + kOneRead);
  return totals_.held <= (small ? room_ + std::max(room_ / 8, kRoomForSmall) : room_);
}

/// Such a body would find no room however long its client waited.
Status MemoryShare::too_large(std::uint64_t bytes) const {
  return {Code::too_large,
          "The body has " + std::to_string(bytes) + " bytes; at most " + std::to_string(room_) +
              " are held at once (--max-buffered-bytes)",
          {},
          "request_too_large"};
}

}  // namespace troupe::http
