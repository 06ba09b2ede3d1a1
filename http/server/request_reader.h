#pragma once
// The input of one connection: bytes received and not yet used, and the request that they begin with. No
// socket and no deadline. Private to connection.cpp.
#include <boost/beast/core/flat_buffer.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "http/server/request_handler.h"
#include "http/server/request_head.h"

namespace troupe::http {

class RequestReader {
 public:
  enum class Progress { need_more, complete, refused };

  explicit RequestReader(const config::LimitOptions& limits);
  ~RequestReader();

  void append(std::span<const char> bytes);
  std::size_t buffered() const { return buffer_.size(); }
  /// Drops what is buffered; returns how much it was.
  std::size_t discard();
  /// Gives the memory back when nothing is buffered.
  void shrink();
  /// Memory that what is buffered and the body take, unused room included.
  std::size_t held_bytes() const;

  /// Reads the head of the next request. After `complete` call head(), then read_body().
  Progress read_head();
  /// Reads the body. After `complete` call body(), then end_request().
  Progress read_body();
  /// Frees what was read of the request; views of it end.
  void end_request();

  /// Why read_head() or read_body() refused. Nothing behind it can be trusted: close after the answer.
  const Status& refusal() const { return refusal_; }

  const HeadFacts& facts() const { return facts_; }
  HeadView head() const;
  std::string_view header(std::string_view name) const;
  /// The values of all header lines of this name, with commas between them.
  std::string joined_header(std::string_view name) const;
  bool keep_alive() const;  ///< the client wants the connection kept
  const std::string& body() const;
  std::string take_body();
  std::size_t body_received() const { return body_received_; }  ///< with what frames its chunks

 private:
  struct Parser;
  Progress refuse(Status status);

  const config::LimitOptions& limits_;
  boost::beast::flat_buffer buffer_;
  HeadScanner scanner_;
  std::unique_ptr<Parser> parser_;
  HeadFacts facts_;
  std::size_t body_received_ = 0;
  Status refusal_;
};

}  // namespace troupe::http
