#pragma once
// The connection of one client request: bytes out, and lines, blocks and chunks in.
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/client.h"

namespace troupe::http {

class ClientSocket {
 public:
  ClientSocket() = default;
  ~ClientSocket();
  ClientSocket(const ClientSocket&) = delete;
  ClientSocket& operator=(const ClientSocket&) = delete;

  Status connect(const ClientOptions& options);
  Status send(std::string_view bytes);

  /// A line without its end, at most 64 KiB.
  Result<std::string> read_line();
  /// Between 1 and `limit` bytes, as soon as there are some; empty at the end of the connection.
  Result<std::string> read_some(std::size_t limit);

 private:
  Status fill();  ///< at least one byte more in buffer_, or closed_

  int fd_ = -1;
  int timeout_ms_ = 0;
  bool closed_ = false;
  std::string address_;  ///< for messages
  std::string buffer_;
  std::size_t taken_ = 0;
};

}  // namespace troupe::http
