#include "http/client/client_socket.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/write.hpp>

namespace troupe::http {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;

ClientSocket::ClientSocket(const ClientOptions& options)
    : options_(options), address_(options.host + ":" + std::to_string(options.port)) {}

/// The server is told at once, even if another process holds a duplicate of the descriptor.
void ClientSocket::close() {
  error_code ignored;
  if (socket_.is_open()) socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

/// Starts an operation with `start(handler)` and waits for its end; error_ is its result. timeout after
/// `patience`, cancelled when options.interrupted returns true.
template <class Start>
Status ClientSocket::run(Duration patience, const std::string& too_slow, Start start) {
  constexpr Duration kInterval = milliseconds(100);  // between two calls of options.interrupted
  bool ended = false;
  const auto handler = [&](const error_code& error, std::size_t bytes) {
    error_ = error;
    transferred_ = bytes;
    ended = true;
  };
  context_.restart();
  start(handler);
  Status status;
  const TimePoint deadline = Clock::now() + patience;
  while (!ended) {
    const Duration left = deadline - Clock::now();
    if (options_.interrupted && options_.interrupted()) status = failure(Code::cancelled, "interrupted");
    if (status.ok() && left <= Duration::zero()) status = failure(Code::timeout, too_slow);
    if (!status.ok()) {
      close();  // ends the operation
      context_.run();
      return status;
    }
    context_.run_one_for(std::min(left, kInterval));
  }
  return {};
}

/// Repeats a step of TLS each time the socket is ready for it, until it is done or ended.
template <class Step>
Status ClientSocket::until_done(const std::string& too_slow, Step step) {
  for (;;) {
    const TlsSession::Progress progress = step();
    if (progress == TlsSession::Progress::done || progress == TlsSession::Progress::ended) return {};
    if (progress == TlsSession::Progress::broken) {
      return failure(Code::unauthorized, "TLS with " + address_ + ": " + tls_->error());
    }
    const auto side = progress == TlsSession::Progress::wants_read ? asio::ip::tcp::socket::wait_read
                                                                   : asio::ip::tcp::socket::wait_write;
    const Status status = run(milliseconds(options_.read_timeout_ms), too_slow, [&](auto handler) {
      socket_.async_wait(side, [handler](const error_code& failed) { handler(failed, 0); });
    });
    if (!status.ok()) return status;
    if (error_)
      return failure(Code::unavailable, "the connection to " + address_ + " broke: " + error_.message());
  }
}

Status ClientSocket::connect() {
  const auto no_server = [&](const std::string& why) {
    return failure(Code::unavailable, "no server answers at " + address_ + " (" + why + ")");
  };
  error_code error;
  asio::ip::tcp::resolver resolver(context_);
  const auto places = resolver.resolve(options_.host, std::to_string(options_.port), error);
  if (error) return no_server(error.message());
  const Status status = run(milliseconds(options_.connect_timeout_ms), "", [&](auto handler) {
    asio::async_connect(socket_, places,
                        [handler](const error_code& failed, const auto&) { handler(failed, 0); });
  });
  if (status.code == Code::timeout) return no_server("it does not react");
  if (!status.ok()) return status;
  if (error_) return no_server(error_.message());
  ::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC);  // Asio opens without it
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  if (options_.tls == nullptr) return {};
  socket_.non_blocking(true, error);
  tls_ = TlsSession::connect(options_.tls, socket_.native_handle(), options_.host);
  return tls_ != nullptr ? Status() : failure(Code::internal, "TLS cannot be set up: " + take_tls_error());
}

Status ClientSocket::send(std::string_view bytes) {
  const std::string too_slow = address_ + " reads nothing";
  if (tls_ != nullptr) {
    while (!bytes.empty()) {
      std::size_t count = 0;
      const Status status = until_done(too_slow, [&] { return tls_->write(bytes, count); });
      if (!status.ok()) return status;
      bytes.remove_prefix(count);
    }
    return {};
  }
  const Status status = run(milliseconds(options_.read_timeout_ms), too_slow, [&](auto handler) {
    asio::async_write(socket_, asio::buffer(bytes.data(), bytes.size()), handler);
  });
  // The server may refuse before it has read everything: its answer can be read then.
  if (!status.ok() || error_ == asio::error::broken_pipe || error_ == asio::error::connection_reset)
    return status;
  if (error_) return failure(Code::unavailable, "sending to " + address_ + ": " + error_.message());
  return {};
}

Result<std::string_view> ClientSocket::read_some() {
  const std::string too_slow = address_ + " was silent for too long";
  if (tls_ != nullptr) {
    const Status status = until_done(too_slow, [&] { return tls_->read(buffer_, transferred_); });
    if (!status.ok()) return status;
    return std::string_view(buffer_.data(),
                            transferred_);  // empty: the server has said that it sends no more
  }
  const Status status = run(milliseconds(options_.read_timeout_ms), too_slow,
                            [&](auto handler) { socket_.async_read_some(asio::buffer(buffer_), handler); });
  if (!status.ok()) return status;
  if (error_ == asio::error::eof) return std::string_view();
  if (error_)
    return failure(Code::unavailable, "the connection to " + address_ + " broke: " + error_.message());
  return std::string_view(buffer_.data(), transferred_);
}

}  // namespace troupe::http
