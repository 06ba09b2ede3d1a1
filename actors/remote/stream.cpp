#include "actors/remote/stream.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace troupe::remote {
namespace {

using Tls = http::TlsSession::Progress;

/// True when the socket is ready, or broken.
bool wait_for(int socket, short events, TimePoint deadline) {
  pollfd fd{socket, events, 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return ::poll(&fd, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000))) > 0;
}

// Records are small and each is waited for.
void send_at_once(int socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Status cannot_reach(const std::string& why) {
  return failure(Code::unavailable, "cannot be reached: " + why);
}

/// By one of the addresses that the name has.
Status connect_socket(const addrinfo& at, ipc::Fd& socket, TimePoint deadline, const std::stop_token& stop) {
  const auto failed = [] { return failure(Code::unavailable, std::strerror(errno)); };
  socket.reset(::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return failed();
  if (::connect(socket.get(), at.ai_addr, at.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return failed();
  while (!wait_for(socket.get(), POLLOUT, std::min(deadline, Clock::now() + kStopLook))) {
    if (stop.stop_requested() || Clock::now() >= deadline)
      return failure(Code::timeout, "there was no answer in time");
  }
  socklen_t size = sizeof errno;
  int error = 0;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
    errno = error;
    return failed();
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Stream>> Stream::connect(const config::Address& address,
                                                const http::TlsContext& context, TimePoint deadline,
                                                const std::stop_token& stop) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error =
          ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
      error != 0) {
    return cannot_reach(::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  ipc::Fd socket;
  Status status;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    status = connect_socket(*at, socket, deadline, stop);
    if (status.ok()) break;
  }
  if (!status.ok()) return cannot_reach(status.message);
  send_at_once(socket.get());
  auto session = http::TlsSession::connect(context, socket.get());
  if (session == nullptr) return failure(Code::internal, "there is no memory for a TLS session");
  return std::unique_ptr<Stream>(new Stream(std::move(socket), std::move(session)));
}

Result<std::unique_ptr<Stream>> Stream::accept(ipc::Fd socket, const http::TlsContext& context) {
  send_at_once(socket.get());
  auto session = http::TlsSession::accept(context, socket.get());
  if (session == nullptr) return failure(Code::internal, "there is no memory for a TLS session");
  return std::unique_ptr<Stream>(new Stream(std::move(socket), std::move(session)));
}

bool Stream::wait(Tls progress, TimePoint deadline) const {
  return wait_for(socket_.get(), progress == Tls::wants_write ? POLLOUT : POLLIN, deadline);
}

Stream::Progress Stream::read(std::span<char> into, std::size_t& count, TimePoint deadline) {
  for (;;) {
    Tls progress;
    {
      const std::lock_guard lock(mutex_);
      progress = session_->read(into, count);
    }
    if (progress == Tls::done) return Progress::done;
    if (progress == Tls::ended || progress == Tls::broken) return Progress::failed;
    if (!wait(progress, deadline)) return Progress::late;
  }
}

Stream::Progress Stream::write(std::span<const std::byte> bytes, TimePoint deadline,
                               const std::stop_token& stop) {
  while (!bytes.empty()) {
    std::size_t count = 0;
    Tls progress;
    {
      const std::lock_guard lock(mutex_);
      progress = session_->write({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, count);
    }
    if (progress == Tls::done) {
      bytes = bytes.subspan(count);
      continue;
    }
    if (progress == Tls::ended || progress == Tls::broken) return Progress::failed;
    while (!wait(progress, std::min(deadline, Clock::now() + kStopLook))) {
      if (stop.stop_requested() || Clock::now() >= deadline) return Progress::late;
    }
  }
  return Progress::done;
}

void Stream::close() { ::shutdown(socket_.get(), SHUT_RDWR); }

std::string Stream::error() const {
  const std::lock_guard lock(mutex_);
  return session_->error().empty() ? "the connection was closed" : session_->error();
}

bool Stream::established() const {
  const std::lock_guard lock(mutex_);
  return session_->established();
}

}  // namespace troupe::remote
