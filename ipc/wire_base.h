#pragma once
// What every record of ipc/wire.h begins with.
#include <cstdint>

namespace troupe::wire {

enum class RecordKind : std::uint32_t {
  hello = 1,      ///< worker → engine, step ring: ready, and what it can hold
  step_plan,      ///< engine → worker, step ring
  step_result,    ///< worker → engine, step ring
  cache_command,  ///< engine → worker, cache ring
  cache_done,     ///< worker → engine, cache ring
  inventory,      ///< worker → engine, cache ring: what it still holds, after hello
  step_masks,     ///< engine → worker, step ring: what the gated rows of a plan may sample
  step_end,       ///< worker → engine, step ring: a rank above 0 has run a plan
  message,  ///< between the front and an engine, both ways: a message of actors/messages.h, or a piece of one
  sequence_media,  ///< engine → worker, step ring: where images and videos are in a sequence
  encode_media,    ///< engine → worker, step ring: an image or a video to be encoded
  media_done,      ///< worker → engine, step ring: it has been
};

/// A typed array inside the same record.
template <class T>
struct Span {
  std::uint32_t offset = 0;  ///< bytes from the record's first byte
  std::uint32_t count = 0;   ///< elements
};

struct Header {
  RecordKind kind{};
  std::uint32_t bytes = 0;  ///< the whole record
  std::uint32_t epoch = 0;  ///< of the link; a record of another epoch is dropped unread
  std::uint32_t padding = 0;
};

}  // namespace troupe::wire
