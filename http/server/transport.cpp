#include "http/server/transport.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <new>
#include <string_view>
#include <utility>

namespace troupe::http {

namespace asio = boost::asio;

void close_socket(Socket& socket) {
  if (!socket.is_open()) return;
  boost::system::error_code ignored;
  socket.shutdown(Socket::shutdown_both, ignored);
  socket.close(ignored);
}

Transport::Transport(Socket socket, const TlsContext& tls) : socket_(std::move(socket)) {
  Error ignored;
  socket_.non_blocking(true, ignored);
  ::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC);  // Asio accepts without it
  if (tls == nullptr) return;
  tls_ = TlsSession::accept(tls, socket_.native_handle());
  if (tls_ == nullptr) throw std::bad_alloc();
}

std::size_t Transport::read_some(std::span<char> into, Error& error) {
  if (tls_ == nullptr) return socket_.read_some(asio::buffer(into.data(), into.size()), error);
  std::size_t count = 0;
  const auto progress = tls_->read(into, count);
  if (progress == TlsSession::Progress::broken && tls_->met_plain_http()) refuse_plain_http();
  input_wait_ = progress == TlsSession::Progress::wants_write ? Socket::wait_write : Socket::wait_read;
  return after(progress, count, error);
}

std::size_t Transport::write_some(std::span<const char> bytes, Error& error) {
  if (tls_ == nullptr) return socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
  std::size_t count = 0;
  if (!tls_->established()) {  // there is nobody yet who could read it
    error = asio::error::not_connected;
    return 0;
  }
  const auto progress = tls_->write(bytes, count);
  return after(progress, count, error);
}

std::size_t Transport::after(TlsSession::Progress progress, std::size_t count, Error& error) {
  switch (progress) {
    case TlsSession::Progress::done: error = {}; break;
    case TlsSession::Progress::wants_read:
    case TlsSession::Progress::wants_write: error = asio::error::would_block; break;
    case TlsSession::Progress::ended: error = asio::error::eof; break;
    case TlsSession::Progress::broken: error = asio::error::connection_aborted; break;
  }
  return count;
}

// A person who forgot the "s" of https reads this; a TLS alert tells a client without TLS nothing.
void Transport::refuse_plain_http() {
  static constexpr std::string_view kAnswer =
      "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 46\r\nConnection: "
      "close\r\n\r\n"
      "This port speaks HTTPS: use https:// to ask it";
  const int fd = socket_.native_handle();
  [[maybe_unused]] const ssize_t sent =
      ::send(fd, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // Closing while input is unread would reset the connection, and the client could lose the answer.
  char unread[16 << 10];
  while (::recv(fd, unread, sizeof unread, MSG_DONTWAIT) == sizeof unread) {
  }
}

void Transport::end_sending() {
  if (tls_ != nullptr) tls_->end();
  Error ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
}

void Transport::close() {
  if (tls_ != nullptr) tls_->end();
  close_socket(socket_);
}

}  // namespace troupe::http
