#pragma once
// Reads one HTTP response from bytes that arrive in pieces. Both clients use it. No socket.
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace troupe::http {

class ResponseReader {
 public:
  /// `head_request`: the response has no body, whatever its head says.
  explicit ResponseReader(bool head_request = false);
  ~ResponseReader();
  ResponseReader(ResponseReader&&) noexcept;
  ResponseReader& operator=(ResponseReader&&) noexcept;

  /// Reads on. False when this is no HTTP response; error() then says why, and nothing may be fed any more.
  bool feed(std::string_view bytes);
  /// The server has closed the connection. True when the response is complete with that.
  bool end();

  bool head_done() const;  ///< status() and headers() are there; interim responses (1xx) are skipped
  bool done() const;
  int status() const;
  std::map<std::string, std::string> headers() const;  ///< names in lower case
  /// Body bytes without their framing. The caller may remove what it has used.
  std::string& body();
  const std::string& error() const { return error_; }

 private:
  struct AppendedBody;
  struct Parser;
  std::size_t parse(std::string_view bytes);

  bool head_request_;
  std::unique_ptr<Parser> parser_;
  std::string unread_;  // the beginning of a head or of a chunk header
  std::string error_;
};

}  // namespace troupe::http
