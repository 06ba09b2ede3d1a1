#pragma once
// The output of one connection: answers as bytes, and which of them the socket has not taken yet. Writing is
// tried directly; only what the kernel does not take waits. Private to connection.cpp and current_answer.cpp.
//
// What waits is kept in segments. A stream's segments end between two events, so that a stream can be cut
// there and still be read; a large body becomes a segment as it is, without a copy. What was sent is freed by
// the segment.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/server/response_head.h"
#include "http/server/transport.h"

namespace troupe::http {

class ResponseWriter {
 public:
  enum class Progress { sent, blocked, broken };

  std::size_t unsent() const { return unsent_; }
  /// True while bytes of a file wait, which unsent() does not count: no further answer may be appended.
  bool sending_file() const { return file_ != nullptr; }
  /// Bytes that the socket has taken, of all answers.
  std::uint64_t taken() const { return taken_; }

  /// A new request begins: body_bytes() counts from 0.
  void begin_answer();
  /// "100 Continue": the client may send the body.
  void append_continue();
  /// A whole answer; `head` gets its length. For a HEAD request the body itself is left out.
  void append_whole(ResponseHead head, Output&& output, bool head_request);
  /// Begins a stream: in chunks, or for HTTP/1.0 until the connection closes.
  void begin_stream(ResponseHead head, const std::vector<std::pair<std::string, std::string>>& headers);
  /// Whole events.
  void append_events(std::string_view bytes);
  void end_stream();
  /// Ends the stream that was begun last with `events`, instead of the events that the socket has no byte of,
  /// except the next few. False, and nothing is changed, when there are no others or the last answer is no
  /// stream.
  bool cut_stream(std::string_view events);

  /// Body bytes since begin_answer().
  std::uint64_t body_bytes() const { return body_bytes_; }

  /// Writes until everything is sent or the kernel takes no more.
  Progress write(Transport& transport);
  /// Gives much memory back, once everything is sent.
  void shrink();

 private:
  bool read_file(bool& broken);
  std::string& tail();
  template <class Append>
  void append(Append append_to);
  void append_chunk_of(std::string_view events);

  std::vector<std::string> segments_ = std::vector<std::string>(1);  // those before first_ are sent and empty
  std::size_t first_ = 0;
  std::size_t sent_ = 0;  // of segments_[first_]
  std::size_t unsent_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t body_bytes_ = 0;
  bool chunked_ = false;
  bool in_stream_ = false;                // the last answer is a stream
  std::size_t stream_begins_in_ = 0;      // the segment with its head
  std::shared_ptr<const FileBody> file_;  // of the last answer, as far as it is not in a segment
  std::uint64_t file_offset_ = 0;
};

}  // namespace troupe::http
