#pragma once
// A small HTTP server on 127.0.0.1 for tests of clients: one answer a connection, each made by the test.
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/loopback_server.h"

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

  explicit WebFixture(Answer answer)
      : answer_(std::move(answer)), server_([this](test::LoopbackPeer peer) { serve(peer); }) {}

  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_.port()); }

  /// What was asked so far.
  std::vector<WebRequest> asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  void serve(test::LoopbackPeer peer) {
    const std::string head = peer.receive_request();
    if (head.find("\r\n\r\n") == std::string::npos) return;
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
    peer.send(out);
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
  mutable std::mutex mutex_;
  std::vector<WebRequest> asked_;
  test::LoopbackServer server_;  // ends first
};

}  // namespace troupe
