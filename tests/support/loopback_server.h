#pragma once
// Listening sockets of 127.0.0.1 for tests, and a server there that does as it is told.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/owned_fd.h"

namespace troupe::test {

/// Listens on a port that the system chooses; the caller closes the socket.
inline int listen_on_loopback(int* port, int backlog = 1024) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, backlog) != 0)
    std::abort();
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  *port = ntohs(address.sin_port);
  return fd;
}

/// The server's end of a connection.
class LoopbackPeer {
 public:
  explicit LoopbackPeer(int fd) : fd_(fd) {}

  /// Sends without waiting for more to send. False when the client has hung up.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  /// A request with its body, whose length has to be given by "Content-Length: ". What has come, if the
  /// client hangs up before the end.
  std::string receive_request() const {
    std::string request;
    char bytes[65536];
    for (std::size_t whole = std::string::npos; request.size() < whole;) {
      const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
      if (got <= 0) break;
      request.append(bytes, static_cast<std::size_t>(got));
      const std::size_t end = request.find("\r\n\r\n"), length = request.find("Content-Length: ");
      if (end == std::string::npos) continue;
      whole = end + 4 + (length < end ? std::stoul(request.substr(length + 16)) : 0);
    }
    return request;
  }
  /// Returns when the client has hung up; what it sends meanwhile is dropped.
  void wait_closed() const {
    char bytes[4096];
    while (::recv(fd_, bytes, sizeof bytes, 0) > 0) {
    }
  }

 private:
  int fd_;
};

/// Hands each connection to `serve` on a thread of its own, and hangs up behind it. At its end it ends the
/// connections that are open, and waits for the threads.
class LoopbackServer {
 public:
  using Serve = std::function<void(LoopbackPeer peer)>;

  explicit LoopbackServer(Serve serve) : serve_(std::move(serve)), listener_(listen_on_loopback(&port_)) {
    acceptor_ = std::thread([this] {
      for (int peer; (peer = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) accept(peer);
    });
  }
  ~LoopbackServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (const OwnedFd& peer : peers_) ::shutdown(peer.get(), SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
  }
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  int port() const { return port_; }
  std::size_t connections() const {
    const std::lock_guard lock(mutex_);
    return peers_.size();
  }

 private:
  void accept(int peer) {
    const int one = 1;
    ::setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const std::lock_guard lock(mutex_);
    peers_.emplace_back(peer);
    threads_.emplace_back([this, peer] {
      serve_(LoopbackPeer(peer));
      ::shutdown(peer, SHUT_RDWR);
    });
  }

  Serve serve_;
  int port_ = 0;
  OwnedFd listener_;
  mutable std::mutex mutex_;
  std::vector<OwnedFd> peers_;  // closed at the end, so that no number names another descriptor
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace troupe::test
