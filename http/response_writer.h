#pragma once
// The output of one connection: answers as bytes, and which of them the socket has not taken yet. Writing is
// tried directly; only what the kernel does not take waits. Private to connection.cpp.
#include <cstdint>
#include <string>
#include <string_view>

#include "http/response_head.h"
#include "http/transport.h"

namespace troupe::http {

class ResponseWriter {
 public:
  enum class Progress { sent, blocked, broken };

  std::size_t unsent() const { return out_.size() - sent_; }

  /// A new request begins: body_bytes() counts from 0.
  void begin_answer() { body_bytes_ = 0; }
  /// "100 Continue": the client may send the body.
  void append_continue();
  /// A whole answer; `head` gets its length. For a HEAD request the body itself is left out.
  void append_whole(ResponseHead head, const Output& output, bool head_request);
  /// Begins a stream: in chunks, or for HTTP/1.0 until the connection closes.
  void begin_stream(ResponseHead head, const std::vector<std::pair<std::string, std::string>>& headers);
  void append_events(std::string_view bytes);
  void end_stream();

  /// Body bytes since begin_answer().
  std::uint64_t body_bytes() const { return body_bytes_; }

  /// Writes until everything is sent or the kernel takes no more.
  Progress write(Transport& transport);
  /// Gives much memory back, once everything is sent.
  void shrink();

 private:
  std::string out_;
  std::size_t sent_ = 0;
  std::uint64_t body_bytes_ = 0;
  bool chunked_ = false;
};

}  // namespace troupe::http
