#pragma once
// Counts the bytes that connections hold. Requests count until they are answered (--max-buffered-bytes),
// answers until the sockets have taken them (--max-unsent-bytes).
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace troupe::http {

/// Of all connections of one server. Any thread.
struct MemoryTotals {
  std::atomic<std::int64_t> held{
      0};  ///< bytes that requests take which are read, or which nothing was answered to
  std::atomic<std::int64_t> most_held{0};  ///< the most of that since memory was last returned to the system
  std::atomic<std::int64_t> unsent{0};     ///< bytes of answers that sockets have not taken
};

/// What one connection contributes to the totals; nothing at first. Used by one thread. Its owner sets both
/// numbers to 0 before it is destroyed.
class MemoryShare {
 public:
  /// `room`: what all connections together may hold, in bytes. `totals` outlives it.
  MemoryShare(MemoryTotals& totals, std::int64_t room) : totals_(totals), room_(room) {}

  /// The request of this connection takes so many bytes now.
  void set_held(std::size_t bytes);
  /// So many bytes of its answers wait for the socket now.
  void set_unsent(std::size_t bytes);

  /// For a body of which nothing is read yet: not ok when it would find no room now (unavailable,
  /// too_many_bytes), or never (too_large, request_too_large). Small bodies are not asked for their length.
  Status check_length(std::uint64_t length) const;
  /// The same for a body of which `received` bytes are read and counted by set_held(). For small bodies there
  /// is an eighth more room, so that they are read although large ones have used the room up.
  Status check_received(std::uint64_t received) const;

 private:
  bool has_room() const;
  Status too_large(std::uint64_t bytes) const;

  MemoryTotals& totals_;
  const std::int64_t room_;
  std::int64_t held_ = 0;
  std::int64_t unsent_ = 0;
};

}  // namespace troupe::http
