#pragma once
// The socket of one connection, with TLS or without. Nothing blocks. Without TLS each call is the socket's
// own and one test of a pointer. Private to connection.cpp and response_writer.cpp.
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <memory>
#include <span>

#include "http/server/tls_session.h"

namespace troupe::http {

using Socket = boost::asio::ip::tcp::socket;

/// Closes a socket so that the peer is told at once, even while another process holds a duplicate of the
/// descriptor: closing alone ends the connection only with the last of them. No effect on a socket that is
/// not open.
void close_socket(Socket& socket);

class Transport {
 public:
  using Error = boost::system::error_code;

  /// `tls` null: plain HTTP. With TLS, reading does the handshake too.
  Transport(Socket socket, const TlsContext& tls);
  Transport(Transport&&) = default;
  ~Transport() { close_socket(socket_); }

  /// As the socket's own. would_block: wait for input_wait(), or for room to write.
  std::size_t read_some(std::span<char> into, Error& error);
  std::size_t write_some(std::span<const char> bytes, Error& error);
  /// What a read that would block waits for: input, but now and then room for the handshake's output.
  Socket::wait_type input_wait() const { return input_wait_; }

  /// Nothing more is sent. Input can still be read.
  void end_sending();
  void close();

  /// Reading has failed: the handshake was refused, or the client speaks no TLS.
  bool handshake_failed() const { return tls_ != nullptr && !tls_->established() && !tls_->error().empty(); }
  const std::string& tls_error() const { return tls_->error(); }

  Socket& socket() { return socket_; }

 private:
  std::size_t after(TlsSession::Progress progress, std::size_t count, Error& error);
  void refuse_plain_http();

  Socket socket_;
  std::unique_ptr<TlsSession> tls_;
  Socket::wait_type input_wait_ = Socket::wait_read;
};

}  // namespace troupe::http
