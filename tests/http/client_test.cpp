// The client against a server that does as it is told.
#include "http/client/client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "http/client/tls_client.h"
#include "support/loopback_server.h"
#include "support/patience.h"

namespace troupe::http {
namespace {

using std::chrono::milliseconds;
using troupe::test::kPatience;
using troupe::test::LoopbackPeer;
using troupe::test::LoopbackServer;
using Pieces = std::vector<std::string>;               // of one answer
using Connections = std::vector<std::vector<Pieces>>;  // the answers of each

void say(LoopbackPeer peer, const Pieces& pieces) {
  for (const std::string& piece : pieces) {
    if (!peer.send(piece)) return;
    if (&piece != &pieces.back())
      std::this_thread::sleep_for(milliseconds(2));  // so that pieces arrive apart
  }
}

std::string body_of(const Result<ClientResponse>& answer) {
  return answer.ok() ? answer->body : "error: " + answer.status().message;
}

/// Answers the requests of a connection one after another, each in pieces, and hangs up behind the last
/// answer. Connections beyond those that are given are answered like the last one.
class AnsweringServer {
 public:
  explicit AnsweringServer(Connections connections)
      : connections_(std::move(connections)), server_([this](LoopbackPeer peer) { serve(peer); }) {}
  /// One answer a connection.
  explicit AnsweringServer(Pieces answer) : AnsweringServer(Connections{{std::move(answer)}}) {}

  Client client() const { return Client({.port = port(), .api_key = "key", .idle_timeout_ms = 20'000}); }
  int port() const { return server_.port(); }
  std::size_t connections() const { return server_.connections(); }
  /// Until so many answers have been sent to their ends.
  void wait_answered(int count) const {
    const TimePoint end = Clock::now() + kPatience;
    while (answered_ < count && Clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
  }
  /// What clients sent, in order.
  std::vector<std::string> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void serve(LoopbackPeer peer) {
    const std::size_t turn = turn_++;
    for (const Pieces& answer : connections_[std::min(turn, connections_.size() - 1)]) {
      const std::string request = peer.receive_request();
      if (request.empty()) return;
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      say(peer, answer);
      ++answered_;
    }
  }

  const Connections connections_;
  std::atomic<std::size_t> turn_{0};
  std::atomic<int> answered_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  LoopbackServer server_;  // ends first
};

Pieces bytes_of(const std::string& text) {
  Pieces pieces;
  for (char c : text) pieces.emplace_back(1, c);
  return pieces;
}

constexpr const char* kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST(Client, ReadsABodyOfKnownLength) {
  AnsweringServer server(
      Pieces{"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello and more"});
  const auto answer = server.client().request("GET", "/x");
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(answer->status, 404);
  EXPECT_EQ(answer->body, "hello");
  EXPECT_EQ(answer->headers.at("x-a"), "b");
  EXPECT_EQ(server.requests()[0].find("GET /x HTTP/1.1\r\n"), 0u);
  EXPECT_NE(server.requests()[0].find("Authorization: Bearer key\r\n"), std::string::npos);
}

TEST(Client, ReadsChunksThatArriveByteByByte) {
  AnsweringServer server(bytes_of(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n, world!!!\r\n0\r\n\r\n"));
  const auto answer = server.client().request("POST", "/x", "{}");
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(answer->body, "hello, world!!!");
}

TEST(Client, ReadsUntilTheEndWithoutALength) {
  AnsweringServer server(Pieces{"HTTP/1.0 200 OK\r\n\r\nall ", "of it"});
  EXPECT_EQ(body_of(server.client().request("GET", "/")), "all of it");
}

TEST(Client, StreamsEvents) {
  // Chunks cut events anywhere; lines may end in CR LF; comments and other fields are skipped.
  AnsweringServer server(Pieces{kStreamHead, "9\r\ndata: {\"a\r\n", "b\r\n\":1}\n\ndata:\r\n",
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
  AnsweringServer server(Pieces{kStreamHead, "8\r\ndata: 1\n\r\n", "1\r\n\n\r\n0\r\n\r\n"});
  int events = 0;
  const auto answer = server.client().stream("/x", "{}", [&](std::string_view) { return ++events > 0; });
  EXPECT_EQ(events, 1);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code, Code::internal);
}

TEST(Client, HangsUpWhenToldTo) {
  AnsweringServer server(Pieces{kStreamHead, "9\r\ndata: 1\n\n\r\n", "9\r\ndata: 2\n\n\r\n"});
  int events = 0;
  const auto answer = server.client().stream("/x", "{}", [&](std::string_view) { return ++events < 1; });
  EXPECT_TRUE(answer.ok());
  EXPECT_EQ(events, 1);
}

TEST(Client, AnErrorInsteadOfAStream) {
  AnsweringServer server(
      Pieces{"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n",
             "{\"error\":{\"message\":\"too busy\"}}"});
  const auto answer = server.client().stream("/x", "{}", [](std::string_view) { return true; });
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(answer->status, 429);
  EXPECT_EQ(error_message(*answer), "too busy");
}

TEST(Client, WhatIsNotHttp) {
  {
    AnsweringServer server(Pieces{"SSH-2.0-x\r\n"});
    EXPECT_EQ(server.client().request("GET", "/").status().code, Code::internal);
  }
  {
    AnsweringServer server(Pieces{"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"});
    EXPECT_EQ(server.client().request("GET", "/").status().code, Code::unavailable);
  }
  {
    AnsweringServer server(Pieces{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"});
    EXPECT_EQ(server.client().request("GET", "/").status().code, Code::internal);
  }
  {
    AnsweringServer server(Pieces{std::string(200'000, 'x')});
    EXPECT_EQ(server.client().request("GET", "/").status().code, Code::internal);
  }
}

TEST(Client, NoServer) {
  const auto answer = Client({.port = 1}).request("GET", "/");
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code, Code::unavailable);
  EXPECT_NE(answer.status().message.find("127.0.0.1:1"), std::string::npos);
}

TEST(Client, TheHostIsAsInAUrl) {
  AnsweringServer server(Pieces{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"});
  ASSERT_TRUE(server.client().request("GET", "/").ok());
  const std::string host = "\r\nHost: 127.0.0.1:" + std::to_string(server.port()) + "\r\n";
  EXPECT_NE(server.requests()[0].find(host), std::string::npos) << server.requests()[0];
}

TEST(Client, FollowsNoRedirect) {
  AnsweringServer server(
      Pieces{"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 4\r\n\r\ngone"});
  Client client = server.client();
  const auto answer = client.request("GET", "/here");
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(answer->status, 302);
  EXPECT_EQ(answer->headers.at("location"), "/elsewhere");
  EXPECT_EQ(answer->body, "gone");
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST(Client, SkipsInterimAnswers) {
  AnsweringServer server(Pieces{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
                                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"});
  const auto answer = server.client().request("POST", "/", "{}");
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "ok");
}

TEST(Client, AHeadRequestHasNoBody) {
  AnsweringServer server(Connections{{Pieces{"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n"},
                                      Pieces{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"}}});
  Client client = server.client();
  const auto head = client.request("HEAD", "/");
  ASSERT_TRUE(head.ok()) << head.status().message;
  EXPECT_EQ(head->headers.at("content-length"), "18");
  EXPECT_EQ(body_of(client.request("GET", "/")), "ok");
  EXPECT_EQ(server.connections(), 1u);
}

TEST(Client, RefusesABodyThatIsTooLarge) {
  LoopbackServer server([](LoopbackPeer peer) {
    peer.receive_request();
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n");
    while (peer.send(std::string(1 << 20, 'x'))) {
    }
  });
  EXPECT_EQ(Client({.port = server.port()}).request("GET", "/").status().code, Code::too_large);
}

// ---- Keep-alive --------------------------------------------------------------------------------------

constexpr const char* kOk = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
constexpr const char* kChunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";

TEST(ClientKeepAlive, OneConnectionTakesOneRequestAfterAnother) {
  // The end of a stream's framing comes behind its end mark, which the client does not wait for.
  AnsweringServer server(
      {{{kOk}, {kChunked}, {kStreamHead, "e\r\ndata: [DONE]\n\n\r\n", "0\r\n\r\n"}, Pieces{kOk}}});
  Client client = server.client();
  EXPECT_EQ(body_of(client.request("GET", "/1")), "ok");
  EXPECT_EQ(body_of(client.request("POST", "/2", "{}")), "ok");
  EXPECT_TRUE(client.stream("/3", "{}", [](std::string_view) { return true; }).ok());
  server.wait_answered(3);  // before the end of the framing another connection would be made
  EXPECT_EQ(body_of(client.request("GET", "/4")), "ok");
  EXPECT_EQ(server.requests().size(), 4u);
  EXPECT_EQ(server.connections(), 1u);
}

TEST(ClientKeepAlive, AServerThatClosesIsConnectedToAgain) {
  for (const char* last :
       {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\n\r\nok", kOk}) {
    AnsweringServer server(Connections{{Pieces{last}}, {Pieces{kOk}}});
    Client client = server.client();
    EXPECT_EQ(body_of(client.request("GET", "/1")), "ok") << last;
    std::this_thread::sleep_for(milliseconds(20));  // the server hangs up meanwhile
    EXPECT_EQ(body_of(client.request("GET", "/2")), "ok") << last;
    EXPECT_EQ(server.requests().size(), 2u) << last;
    EXPECT_EQ(server.connections(), 2u) << last;
  }
}

TEST(ClientKeepAlive, BytesBehindAnAnswerAreNotTheNextOne) {
  AnsweringServer server(
      Connections{{Pieces{std::string(kOk) + "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold"}, Pieces{kOk}},
                  {Pieces{kOk}}});
  Client client = server.client();
  EXPECT_EQ(body_of(client.request("GET", "/1")), "ok");
  EXPECT_EQ(body_of(client.request("GET", "/2")), "ok");
  EXPECT_EQ(server.connections(), 2u);
}

/// Answers the first request of its first connection, and hangs up when the next one comes.
class HangingUpServer {
 public:
  HangingUpServer()
      : server_([this](LoopbackPeer peer) {
          const bool first = asked == 0;
          for (int i = 0; i < 2 && !peer.receive_request().empty(); ++i) {
            ++asked;
            if (!first || i > 0) return;
            peer.send(kOk);
          }
        }) {}
  std::atomic<int> asked{0};
  int port() const { return server_.port(); }

 private:
  LoopbackServer server_;
};

TEST(ClientKeepAlive, ARequestThatMeetsAClosedConnectionIsSentOnceMore) {
  HangingUpServer server;
  Client client({.port = server.port()});
  EXPECT_EQ(body_of(client.request("GET", "/1")), "ok");
  EXPECT_EQ(client.request("POST", "/2", "{}").status().code, Code::unavailable);
  EXPECT_EQ(server.asked, 3);
  EXPECT_EQ(Client({.port = server.port()}).request("GET", "/3").status().code, Code::unavailable);
  EXPECT_EQ(server.asked, 4) << "on a new connection it is not repeated";
}

TEST(ClientKeepAlive, HangingUpEndsTheConnection) {
  std::atomic<int> closed{0};
  LoopbackServer server([&](LoopbackPeer peer) {
    peer.receive_request();
    peer.send(std::string(kStreamHead) + "9\r\ndata: 1\n\n\r\n");
    peer.wait_closed();
    ++closed;
  });
  Client client({.port = server.port()});
  EXPECT_TRUE(client.stream("/", "{}", [](std::string_view) { return false; }).ok());
  const TimePoint end = Clock::now() + kPatience;
  while (closed == 0 && Clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(closed, 1);
}

// ---- Streams cut anywhere ----------------------------------------------------------------------------

TEST(Client, StreamsAnAnswerCutAtAnyByte) {
  // Two events in one chunk, one over two chunks.
  const auto chunk = [](const std::string& bytes) {
    char size[16];
    std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    return size + bytes + "\r\n";
  };
  const std::string answer = kStreamHead + chunk("data: {\"a\":1}\n\n: ping\r\ndata: two\r\nda") +
                             chunk("ta: lines\r\n\r\ndata: [DONE]\n\n") + "0\r\n\r\n";
  Connections connections;
  for (std::size_t cut = 1; cut < answer.size(); ++cut) {
    connections.push_back({{answer.substr(0, cut), answer.substr(cut)}});
  }
  AnsweringServer server(connections);
  for (std::size_t cut = 1; cut < answer.size(); ++cut) {
    std::vector<std::string> data;
    const auto status = server.client().stream(
        "/", "{}", [&](std::string_view event) { return data.emplace_back(event), true; });
    ASSERT_TRUE(status.ok()) << cut << ": " << status.status().message;
    ASSERT_EQ(data, (std::vector<std::string>{"{\"a\":1}", "two\nlines"})) << cut;
  }
}

/// An event is told when its last byte has come, not with the next one's.
TEST(Client, AnEventIsToldBeforeTheNextOneComes) {
  std::atomic<int> told{0};
  LoopbackServer server([&](LoopbackPeer peer) {
    peer.receive_request();
    peer.send(kStreamHead);
    const TimePoint end = Clock::now() + kPatience;
    for (int i = 0; i < 3; ++i) {
      peer.send("9\r\ndata: 1\n\n\r\n");
      while (told <= i && Clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
    }
    peer.send("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  });
  const TimePoint start = Clock::now();
  EXPECT_TRUE(
      Client({.port = server.port()}).stream("/", "{}", [&](std::string_view) { return ++told > 0; }).ok());
  EXPECT_LT(Clock::now() - start, kPatience);
}

TEST(Client, AServerThatEndsInTheMiddleIsUnavailable) {
  for (const Pieces& cut : {Pieces{"HTTP/1.1 200 OK\r\nContent-Le"},
                            Pieces{"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", "short"},
                            Pieces{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\nhel"},
                            Pieces{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"},
                            Pieces{kStreamHead, "9\r\ndata: 1\n\n\r\n"}}) {
    AnsweringServer server(cut);
    const Status status = server.client().stream("/", "{}", [](std::string_view) { return true; }).status();
    EXPECT_EQ(status.code, Code::unavailable) << cut.back();
    EXPECT_NE(status.message.find("in the middle of the answer"), std::string::npos) << status.message;
  }
}

// ---- Deadlines and interrupts ------------------------------------------------------------------------

/// What fails within `options`' short deadline, and not only at the patience of the test.
Status fails_soon(ClientOptions options, const std::string& body = {}) {
  const TimePoint start = Clock::now();
  const Status status = Client(std::move(options)).request("POST", "/", body).status();
  EXPECT_LT(Clock::now() - start, kPatience);
  return status;
}

TEST(ClientDeadlines, AServerThatAcceptsNothing) {
  int port = 0;
  const OwnedFd listener(troupe::test::listen_on_loopback(&port, 0));
  std::vector<OwnedFd> waiting;  // until the queue of connections is full
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    (void)::connect(waiting.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  const Status status = fails_soon({.port = port, .connect_timeout_ms = 200});
  EXPECT_EQ(status.code, Code::unavailable);
  EXPECT_NE(status.message.find("it does not react"), std::string::npos) << status.message;
}

TEST(ClientDeadlines, AServerThatAgreesOnNoTls) {
  LoopbackServer server([](LoopbackPeer peer) { peer.wait_closed(); });
  const Status status = fails_soon(
      {.port = server.port(), .tls = *make_client_tls({.insecure = true}), .connect_timeout_ms = 200});
  EXPECT_EQ(status.code, Code::unavailable);
  EXPECT_NE(status.message.find("it does not react"), std::string::npos) << status.message;
}

TEST(ClientDeadlines, AServerThatReadsNothing) {
  std::atomic<bool> over{false};
  LoopbackServer server([&](LoopbackPeer) {
    while (!over) std::this_thread::sleep_for(milliseconds(2));
  });
  const Status status =
      fails_soon({.port = server.port(), .first_byte_timeout_ms = 200}, std::string(64 << 20, 'x'));
  over = true;
  EXPECT_EQ(status.code, Code::timeout);
  EXPECT_NE(status.message.find("reads nothing"), std::string::npos) << status.message;
}

TEST(ClientDeadlines, AnAnswerThatDoesNotBeginOrItsHeadNotEnd) {
  LoopbackServer silent([](LoopbackPeer peer) { peer.wait_closed(); });
  LoopbackServer dribbling([](LoopbackPeer peer) {
    peer.receive_request();
    peer.send("HTTP/1.1 200 OK\r\n");
    while (peer.send("X: y\r\n")) std::this_thread::sleep_for(milliseconds(20));
  });
  for (const int port : {silent.port(), dribbling.port()}) {
    const Status status = fails_soon({.port = port, .first_byte_timeout_ms = 300});
    EXPECT_EQ(status.code, Code::timeout);
    EXPECT_NE(status.message.find("was silent for too long"), std::string::npos) << status.message;
  }
}

TEST(ClientDeadlines, AnAnswerThatPauses) {
  LoopbackServer server([](LoopbackPeer peer) {
    peer.receive_request();
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
    peer.wait_closed();
  });
  const Status status = fails_soon({.port = server.port(), .idle_timeout_ms = 200});
  EXPECT_EQ(status.code, Code::timeout);
}

TEST(Client, AnInterruptEndsWhateverItWaitsFor) {
  LoopbackServer silent([](LoopbackPeer peer) { peer.wait_closed(); });
  LoopbackServer pausing([](LoopbackPeer peer) {
    peer.receive_request();
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
    peer.wait_closed();
  });
  const auto cancelled = [](int port, const TlsContext& tls, std::size_t body) {
    const TimePoint from = Clock::now() + milliseconds(150);
    return fails_soon({.port = port,
                       .tls = tls,
                       .connect_timeout_ms = 60'000,
                       .interrupted = [from] { return Clock::now() > from; }},
                      std::string(body, 'x'))
        .code;
  };
  EXPECT_EQ(cancelled(silent.port(), *make_client_tls({.insecure = true}), 0),
            Code::cancelled);  // the handshake
  EXPECT_EQ(cancelled(silent.port(), nullptr, 0), Code::cancelled);
  EXPECT_EQ(cancelled(pausing.port(), nullptr, 0), Code::cancelled);
}

}  // namespace
}  // namespace troupe::http
