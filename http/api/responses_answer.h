#pragma once
// Answers of /v1/responses: the response object and the events of a stream, in OpenAI's JSON. Everything is
// appended to a string of the caller, and what never changes within an answer is escaped once, into a
// ResponseFrame.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/api/answer_part.h"
#include "http/api/openai_response.h"

namespace troupe::http {

/// The part of a response object that never changes. Immutable, so any thread may use it.
class ResponseFrame {
 public:
  /// `settings`: members that repeat the request, as JSON without braces (ChatRequest::settings).
  ResponseFrame(std::string_view id, std::string_view model, std::int64_t created_s,
                std::string_view settings, float temperature, float top_p);

  const std::string& prefix() const { return prefix_; }  ///< an object that has begun and has members

 private:
  std::string prefix_;
};

/// How far a response is.
struct ResponseState {
  enum class Status : std::uint8_t { in_progress, completed, incomplete, failed };
  Status status = Status::in_progress;
  std::string_view incomplete_reason;     ///< of incomplete: "max_output_tokens"
  const troupe::Status* error = nullptr;  ///< of failed
  const Usage* usage = nullptr;           ///< null while it is in progress
};

/// The response object.
void append_response(std::string& out, const ResponseFrame& frame, std::span<const AnswerPart> parts,
                     const ResponseState& state);

/// Appends the events of one stream, which it numbers. Every part is begun, grows and ends before the next
/// one begins; `index` is its place in the output.
class ResponseEvents {
 public:
  /// `frame` outlives this.
  explicit ResponseEvents(const ResponseFrame& frame) : frame_(frame) {}

  /// response.created and response.in_progress.
  void begin(std::string& out);
  /// response.output_item.added and, but for calls, response.content_part.added.
  void begin_part(std::string& out, std::size_t index, const AnswerPart& part);
  /// The part's text has grown by `delta`.
  void grow(std::string& out, std::size_t index, const AnswerPart& part, std::string_view delta);
  /// The done events of text, content part and item.
  void end_part(std::string& out, std::size_t index, const AnswerPart& part);
  /// response.completed, response.incomplete or response.failed.
  void end(std::string& out, std::span<const AnswerPart> parts, const ResponseState& state);

 private:
  void open_event(std::string& out, std::string_view type);
  void open_part_event(std::string& out, std::string_view type, std::size_t index, const AnswerPart& part);
  void append_item_event(std::string& out, std::string_view type, std::size_t index, const AnswerPart& part,
                         bool done);

  const ResponseFrame& frame_;
  std::int64_t next_ = 0;
};

}  // namespace troupe::http
