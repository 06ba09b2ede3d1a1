#pragma once
// A small HTTP server on 127.0.0.1 for tests of clients: one answer a connection, each made by the test.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/owned_fd.h"

namespace troupe {

struct WebRequest {
  std::string method;
  std::string target;
  std::map<std::string, std::string> headers;  ///< names in lower case

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct WebReply {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  std::vector<std::string> headers;            ///< "Name: value"
  std::size_t sent_bytes = std::string::npos;  ///< of the body; then the connection ends
};

class WebFixture {
 public:
  using Answer = std::function<WebReply(const WebRequest&)>;

  explicit WebFixture(Answer answer) : answer_(std::move(answer)) {
    listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 64), 0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }

  ~WebFixture() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : connections_) thread.join();
  }

  WebFixture(const WebFixture&) = delete;
  WebFixture& operator=(const WebFixture&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  /// What was asked so far.
  std::vector<WebRequest> asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  void accept_all() {
    while (true) {
      const int peer = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (peer < 0) return;
      connections_.emplace_back([this, peer] { serve(OwnedFd(peer)); });
    }
  }

  void serve(OwnedFd peer) {
    std::string head;
    char bytes[4096];
    while (head.find("\r\n\r\n") == std::string::npos) {
      const ssize_t got = ::recv(peer.get(), bytes, sizeof bytes, 0);
      if (got <= 0) return;
      head.append(bytes, static_cast<std::size_t>(got));
    }
    const WebRequest request = parsed(head);
    {
      const std::lock_guard lock(mutex_);
      asked_.push_back(request);
    }
    const WebReply reply = answer_(request);
    std::string out = "HTTP/1.1 " + std::to_string(reply.status) + " Said\r\nContent-Type: " + reply.type +
                      "\r\nContent-Length: " + std::to_string(reply.body.size()) +
                      "\r\nConnection: close\r\n";
    for (const std::string& header : reply.headers) out += header + "\r\n";
    out += "\r\n" + reply.body.substr(0, reply.sent_bytes);
    std::size_t sent = 0;
    while (sent < out.size()) {
      const ssize_t n = ::send(peer.get(), out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<std::size_t>(n);
    }
  }

  static WebRequest parsed(const std::string& head) {
    WebRequest request;
    const std::size_t first = head.find(' '), second = head.find(' ', first + 1);
    request.method = head.substr(0, first);
    request.target = head.substr(first + 1, second - first - 1);
    std::size_t at = head.find("\r\n") + 2;
    for (std::size_t end; (end = head.find("\r\n", at)) != at; at = end + 2) {
      const std::size_t colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
      request.headers[name] = head.substr(colon + 2, end - colon - 2);
    }
    return request;
  }

  Answer answer_;
  OwnedFd listener_;
  int port_ = 0;
  std::thread acceptor_;
  std::vector<std::thread> connections_;  // of the acceptor until it has ended
  mutable std::mutex mutex_;
  std::vector<WebRequest> asked_;
};

}  // namespace troupe
