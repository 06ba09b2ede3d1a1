#pragma once
// The input of one connection: bytes received and not yet used, and the request that they begin with. No
// socket and no deadline. Private to connection.cpp.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "http/server/body_sink.h"
#include "http/server/chunked_body.h"
#include "http/server/request_head.h"

namespace troupe::http {

class RequestReader {
 public:
  enum class Progress { need_more, complete, refused };

  /// `limits` outlives this.
  explicit RequestReader(const config::LimitOptions& limits) : limits_(limits), parser_(limits) {}

  void append(std::span<const char> bytes);
  std::size_t buffered() const { return input_.size() - used_; }
  /// Drops what is buffered; returns how much it was.
  std::size_t discard();
  /// Gives the memory back when nothing is buffered.
  void shrink();
  /// Memory that what is buffered and the request take, unused room included.
  std::size_t held_bytes() const;

  /// Reads the head of the next request. After `complete` call head(), then read_body().
  Progress read_head();
  /// Reads the body. After `complete` call body(), then end_request().
  Progress read_body();
  /// The body of this request goes there and is not kept: body() is empty. Call it before read_body().
  void send_body_to(std::shared_ptr<BodySink> sink) { sink_ = std::move(sink); }
  bool has_sink() const { return sink_ != nullptr; }
  std::shared_ptr<BodySink> take_sink() { return std::move(sink_); }
  /// Frees what was read of the request; views of it end. Its facts() stay until the next head is complete.
  void end_request();

  /// Why read_head() or read_body() refused. Nothing behind it can be trusted: close after the answer.
  const Status& refusal() const { return refusal_; }

  const HeadFacts& facts() const { return facts_; }
  HeadView head() const { return parser_.view(head_); }
  /// The values of all X-Forwarded-For lines, with commas between them.
  std::string forwarded_for() const { return parser_.forwarded_for(head_); }
  const std::string& body() const { return body_; }
  std::string take_body() { return std::move(body_); }
  std::size_t body_received() const { return body_received_; }  ///< with what frames its chunks

 private:
  std::string_view unused() const { return std::string_view(input_).substr(used_); }
  void consume(std::size_t bytes);
  Progress refuse(Status status);
  Progress read_chunks();
  std::uint64_t most_bytes() const;
  bool too_large() const { return body_.size() > most_bytes(); }
  Progress refuse_large();
  Status pass_on();

  const config::LimitOptions& limits_;
  std::string input_;
  std::size_t used_ = 0;  // bytes of input_
  HeadParser parser_;
  std::string head_, body_;  // of the request
  std::shared_ptr<BodySink> sink_;
  ChunkedBody chunks_;
  HeadFacts facts_;
  std::size_t body_received_ = 0;
  Status refusal_;
};

}  // namespace troupe::http
