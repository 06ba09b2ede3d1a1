#pragma once
// The connection of one client request: bytes out and bytes in, each within a time. Private to client.cpp.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "http/client/client.h"

namespace troupe::http {

class ClientSocket {
 public:
  /// `options` outlives this.
  explicit ClientSocket(const ClientOptions& options);
  ~ClientSocket() { close(); }

  Status connect();
  Status send(std::string_view bytes);
  /// At least one byte, as soon as there is one; empty at the end of the connection. Valid until the next
  /// call.
  Result<std::string_view> read_some();

 private:
  void close();
  template <class Step>
  Status until_done(const std::string& too_slow, Step step);
  template <class Start>
  Status run(Duration patience, const std::string& too_slow, Start start);

  const ClientOptions& options_;
  const std::string address_;  // for messages
  boost::asio::io_context context_{1};
  boost::asio::ip::tcp::socket socket_{context_};
  std::unique_ptr<TlsSession> tls_;  // null: plain HTTP
  boost::system::error_code error_;  // of the last operation
  std::size_t transferred_ = 0;      // likewise
  std::vector<char> buffer_ = std::vector<char>(16 << 10);
};

}  // namespace troupe::http
