#include "http/client_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace troupe::http {
namespace {

Status no_server(const std::string& address, const std::string& why) {
  return failure(Code::unavailable, "no server answers at " + address + " (" + why + ")");
}

/// 0 when connected, else an errno.
int connect_within(int fd, const addrinfo& place, int timeout_ms) {
  if (::connect(fd, place.ai_addr, place.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{fd, POLLOUT, 0};
  if (::poll(&wait, 1, timeout_ms) != 1) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

ClientSocket::~ClientSocket() {
  if (fd_ >= 0) ::close(fd_);
}

Status ClientSocket::connect(const ClientOptions& options) {
  timeout_ms_ = options.read_timeout_ms;
  address_ = options.host + ":" + std::to_string(options.port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed =
      ::getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found);
  if (failed != 0) return no_server(address_, ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> places(found, ::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next) {
    const int fd = ::socket(place->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    error = connect_within(fd, *place, options.connect_timeout_ms);
    if (error == 0) {
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      fd_ = fd;
      return {};
    }
    ::close(fd);
  }
  return no_server(address_, std::strerror(error));
}

Status ClientSocket::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    // The server may refuse before it has read everything: its answer is then waiting.
    if (errno == EPIPE || errno == ECONNRESET) return {};
    if (errno != EAGAIN)
      return failure(Code::unavailable, "sending to " + address_ + ": " + std::strerror(errno));
    pollfd wait{fd_, POLLOUT, 0};
    if (::poll(&wait, 1, timeout_ms_) == 0) return failure(Code::timeout, address_ + " reads nothing");
  }
  return {};
}

Status ClientSocket::fill() {
  if (taken_ == buffer_.size()) {
    buffer_.clear();
    taken_ = 0;
  }
  std::array<char, 16384> bytes;
  while (!closed_) {
    const ssize_t got = ::recv(fd_, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      buffer_.append(bytes.data(), static_cast<std::size_t>(got));
      return {};
    }
    if (got == 0) {
      closed_ = true;
      return {};
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return failure(Code::unavailable, "the connection to " + address_ + " broke: " + std::strerror(errno));
    }
    pollfd wait{fd_, POLLIN, 0};
    const int ready = ::poll(&wait, 1, timeout_ms_);
    if (ready == 0) return failure(Code::timeout, address_ + " was silent for too long");
    // An interrupted wait ends the request: Ctrl-C means stop.
    if (ready < 0) return failure(Code::cancelled, "interrupted");
  }
  return {};
}

Result<std::string> ClientSocket::read_line() {
  constexpr std::size_t kLongest = 64 << 10;
  while (true) {
    const std::size_t end = buffer_.find('\n', taken_);
    if (end != std::string::npos) {
      std::string line = buffer_.substr(taken_, end - taken_);
      taken_ = end + 1;
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (buffer_.size() - taken_ > kLongest) return failure(Code::internal, address_ + " does not speak HTTP");
    Status status = fill();
    if (!status.ok()) return status;
    if (closed_) return failure(Code::unavailable, address_ + " closed the connection");
  }
}

Result<std::string> ClientSocket::read_some(std::size_t limit) {
  if (taken_ == buffer_.size()) {
    Status status = fill();
    if (!status.ok()) return status;
  }
  std::string out = buffer_.substr(taken_, limit);
  taken_ += out.size();
  return out;
}

}  // namespace troupe::http
