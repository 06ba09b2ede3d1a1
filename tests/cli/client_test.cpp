#include "http/client/client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace troupe::http {
namespace {

/// Accepts one connection on a free port, reads a request's head, sends the given bytes one piece at a time
/// and hangs up.
class OneAnswer {
 public:
  explicit OneAnswer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(fd_, 1), 0);
    socklen_t size = sizeof address;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~OneAnswer() {
    thread_.join();
    ::close(fd_);
  }

  Client client() const {
    ClientOptions options;
    options.port = port_;
    options.api_key = "key";
    options.read_timeout_ms = 3000;
    return Client(options);
  }
  /// What the client sent; once it has its answer.
  const std::string& request() const { return request_; }

 private:
  void serve() {
    const int peer = ::accept(fd_, nullptr, nullptr);
    char bytes[4096];
    while (request_.find("\r\n\r\n") == std::string::npos) {
      const ssize_t got = ::recv(peer, bytes, sizeof bytes, 0);
      if (got <= 0) break;
      request_.append(bytes, static_cast<std::size_t>(got));
    }
    for (const std::string& piece : pieces_) {
      if (::send(peer, piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so that pieces arrive apart
    }
    ::close(peer);
  }

  const std::vector<std::string> pieces_;
  int fd_ = -1;
  int port_ = 0;
  std::string request_;
  std::thread thread_;
};

std::vector<std::string> bytes_of(const std::string& text) {
  std::vector<std::string> pieces;
  for (char c : text) pieces.emplace_back(1, c);
  return pieces;
}

constexpr const char* kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST(Client, ReadsABodyOfKnownLength) {
  OneAnswer server({"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello and more"});
  const auto answer = server.client().request("GET", "/x");
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(answer->status, 404);
  EXPECT_EQ(answer->body, "hello");
  EXPECT_EQ(answer->headers.at("x-a"), "b");
  EXPECT_EQ(server.request().find("GET /x HTTP/1.1\r\n"), 0u);
  EXPECT_NE(server.request().find("authorization: Bearer key\r\n"), std::string::npos);
}

TEST(Client, ReadsChunksThatArriveByteByByte) {
  OneAnswer server(bytes_of(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n, world!!!\r\n0\r\n\r\n"));
  const auto answer = server.client().request("POST", "/x", "{}");
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(answer->body, "hello, world!!!");
}

TEST(Client, ReadsUntilTheEndWithoutALength) {
  OneAnswer server({"HTTP/1.0 200 OK\r\n\r\nall ", "of it"});
  EXPECT_EQ(server.client().request("GET", "/")->body, "all of it");
}

TEST(Client, StreamsEvents) {
  // Chunks cut events anywhere; lines may end in CR LF; comments and other fields are skipped.
  OneAnswer server({kStreamHead, "9\r\ndata: {\"a\r\n", "b\r\n\":1}\n\ndata:\r\n",
                    "1c\r\n two\ndata: lines\n\n: ping\n\nev\r\n",
                    "18\r\nent: x\r\n\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"});
  std::vector<std::string> events;
  const auto answer = server.client().stream("/v1/chat/completions", "{}", [&](std::string_view data) {
    events.emplace_back(data);
    return true;
  });
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(events, (std::vector<std::string>{"{\"a\":1}", "two\nlines"}));
}

TEST(Client, AStreamThatBreaksOffIsAnError) {
  OneAnswer server({kStreamHead, "8\r\ndata: 1\n\r\n", "1\r\n\n\r\n0\r\n\r\n"});
  int events = 0;
  const auto answer = server.client().stream("/x", "{}", [&](std::string_view) { return ++events > 0; });
  EXPECT_EQ(events, 1);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code, Code::internal);
}

TEST(Client, HangsUpWhenToldTo) {
  OneAnswer server({kStreamHead, "9\r\ndata: 1\n\n\r\n", "9\r\ndata: 2\n\n\r\n"});
  int events = 0;
  const auto answer = server.client().stream("/x", "{}", [&](std::string_view) { return ++events < 1; });
  EXPECT_TRUE(answer.ok());
  EXPECT_EQ(events, 1);
}

TEST(Client, AnErrorInsteadOfAStream) {
  OneAnswer server(
      {"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n",
       "{\"error\":{\"message\":\"too busy\"}}"});
  const auto answer = server.client().stream("/x", "{}", [](std::string_view) { return true; });
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(answer->status, 429);
  EXPECT_EQ(error_message(*answer), "too busy");
}

TEST(Client, WhatIsNotHttp) {
  {
    OneAnswer server({"SSH-2.0-x\r\n"});
    EXPECT_EQ(server.client().request("GET", "/").status().code, Code::internal);
  }
  {
    OneAnswer server({"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"});
    EXPECT_EQ(server.client().request("GET", "/").status().code, Code::unavailable);
  }
  {
    OneAnswer server({"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"});
    EXPECT_EQ(server.client().request("GET", "/").status().code, Code::internal);
  }
  {
    OneAnswer server({std::string(200'000, 'x')});
    EXPECT_EQ(server.client().request("GET", "/").status().code, Code::internal);
  }
}

TEST(Client, NoServer) {
  ClientOptions options;
  options.port = 1;
  const auto answer = Client(options).request("GET", "/");
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code, Code::unavailable);
  EXPECT_NE(answer.status().message.find("127.0.0.1:1"), std::string::npos);
}

}  // namespace
}  // namespace troupe::http
