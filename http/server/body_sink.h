#pragma once
// Where a body goes that is not held in memory.
#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace troupe::http {

/// Takes one body piece by piece, on the thread of its connection. Destroyed without anything else being
/// said when the client leaves.
class BodySink {
 public:
  virtual ~BodySink() = default;
  /// The next bytes. Not ok: no more is read, and the client gets this as the answer.
  virtual Status write(std::string_view bytes) = 0;
  /// Most bytes of a body; one that says that it has more is refused unread.
  virtual std::uint64_t most_bytes() const = 0;
};

}  // namespace troupe::http
