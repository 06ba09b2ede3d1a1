#pragma once
// The answer that a connection is giving: the backend's outputs as bytes of a ResponseWriter. Private to
// connection.cpp.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "http/server/current_request.h"
#include "http/server/response_writer.h"

namespace troupe::http {

/// What the head of an answer says of the connection.
struct AnswerHead {
  std::string_view date;  ///< of http_date()
  bool close = false;     ///< the connection is not kept after the answer
};

/// One answer after the other. Used by one thread.
class CurrentAnswer {
 public:
  /// `writer` outlives it.
  explicit CurrentAnswer(ResponseWriter& writer) : writer_(writer) {}

  /// A request has begun, or is refused unread; nothing is answered to it yet.
  void begin();
  /// Fields of the request that have no effect: the head names them.
  void set_ignored(const std::vector<std::string>& fields);

  /// A complete answer, of Kind::whole.
  void write_whole(const AnswerHead& head, const CurrentRequest& request, Output&& output);
  /// The head of a stream. `http10`: it ends with the connection. `first` is the output that it begins with,
  /// which append() gets, too.
  void begin_stream(const AnswerHead& head, const CurrentRequest& request, bool http10, const Output& first);
  /// An output for the stream. A whole answer becomes its last event in the form of `api`: an error, as the
  /// head was sent already. True when the stream is complete.
  bool append(const Output& output, Api api);
  /// Drops what the client has not read and ends the stream with an error event in the form of `api`. Returns
  /// false and changes nothing if the answer is no stream or nothing can be dropped.
  bool cut(Api api);
  /// It is complete.
  void end() { ignored_.clear(); }

  /// An error is among the events of the stream.
  bool failed() const { return failed_; }

 private:
  ResponseHead head_of(const AnswerHead& head, const CurrentRequest& request, std::uint16_t status) const;

  ResponseWriter& writer_;
  std::string ignored_;  // ignored_text()
  bool failed_ = false;
};

}  // namespace troupe::http
