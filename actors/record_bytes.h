#pragma once
// A record of the rings as the payload of an actor message.
#include <cstddef>
#include <span>

#include "actors/messages.h"

namespace troupe {

/// A copy: the record's own memory is reused or released after this.
inline Bytes to_bytes(std::span<const std::byte> record) {
  const auto* first = reinterpret_cast<const char*>(record.data());
  return Bytes(first, first + record.size());
}

}  // namespace troupe
