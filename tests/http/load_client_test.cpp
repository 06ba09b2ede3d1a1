// The load generator against a server that does as it is told.
#include "http/client/load_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "support/loopback_server.h"
#include "support/patience.h"

namespace troupe::http {
namespace {

using std::chrono::milliseconds;
using troupe::test::LoopbackPeer;
using troupe::test::LoopbackServer;

const std::string kHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string chunk(const std::string& bytes) {
  char size[16];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + bytes + "\r\n";
}
std::string text_event(const std::string& text) {
  return chunk("data: {\"choices\":[{\"index\":0,\"text\":\"" + text + "\"}],\"usage\":null}\n\n");
}
const std::string kUsage = chunk("data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\n");
const std::string kDone = chunk("data: [DONE]\n\n") + "0\r\n\r\n";

/// Hands each connection, with the request it brought, to `serve`, and keeps count.
class LocalServer {
 public:
  using Serve = std::function<void(LoopbackPeer peer, const std::string& request)>;

  explicit LocalServer(Serve serve)
      : serve_(std::move(serve)), server_([this](LoopbackPeer peer) { turn(peer); }) {}

  int port() const { return server_.port(); }
  std::vector<std::string> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  /// Until so many have been inside at one time.
  void wait_inside(int count) const {
    const auto end = std::chrono::steady_clock::now() + troupe::test::kPatience;
    while (most_inside < count && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  /// For a request's turn: it counts as inside no more. Before its answer's last byte, behind which the next
  /// request may come at once.
  void leave() {
    if (!std::exchange(left_, true)) --inside;
  }

  std::atomic<int> inside{0}, most_inside{0};

 private:
  void turn(LoopbackPeer peer) {
    const std::string request = peer.receive_request();
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
      most_inside = std::max(most_inside.load(), ++inside);
    }
    left_ = false;
    serve_(peer, request);
    leave();
  }

  static thread_local bool left_;  // the request of this thread's turn
  Serve serve_;
  std::mutex mutex_;
  std::vector<std::string> requests_;
  LoopbackServer server_;  // ends first
};

thread_local bool LocalServer::left_ = false;

LoadRun load(const LocalServer& server, int requests, int concurrency = 0, double limit_s = 60) {
  return run_load({.port = server.port(), .concurrency = concurrency, .limit_s = limit_s},
                  std::vector<LoadRequest>(static_cast<std::size_t>(requests), {"{}", 0}));
}

TEST(LoadClient, TimesTheEventsThatCarryText) {
  LocalServer server([](LoopbackPeer peer, const std::string&) {
    peer.send(kHead + text_event(""));
    std::this_thread::sleep_for(milliseconds(30));
    peer.send(text_event("a"));
    std::this_thread::sleep_for(milliseconds(20));
    peer.send(text_event("b") + text_event("\\\"text\\\":\\\"\\\""));
    peer.send(kUsage + kDone);
  });
  const LoadRun run = load(server, 1);
  ASSERT_TRUE(run.all_ok());
  const LoadAnswer& a = run.answers[0];
  EXPECT_EQ(a.status, 200);
  EXPECT_EQ(a.events, 3);
  EXPECT_EQ(run.events, 3);
  EXPECT_EQ(a.tokens, 7);
  EXPECT_GE(a.first_ns - a.sent_ns, 30'000'000);
  ASSERT_EQ(a.gaps_ms.size(), 2u);
  // Only what a delayed reader cannot change: the gaps make up the time from the first event to the last.
  EXPECT_NEAR(a.gaps_ms[0] + a.gaps_ms[1], static_cast<double>(a.last_ns - a.first_ns) * 1e-6, 1e-3);
  EXPECT_LE(a.first_ns, a.last_ns);
  EXPECT_LE(a.last_ns, a.end_ns);
  EXPECT_GE(run.seconds, 0.05);
}

TEST(LoadClient, SendsWhatItWasGiven) {
  LocalServer server([](LoopbackPeer peer, const std::string&) { peer.send(kHead + kDone); });
  const std::string body(3'000'000, 'x');  // more than a socket takes at once
  const LoadRun run =
      run_load({.port = server.port(), .path = "/v1/chat/completions", .api_key = "k"}, {{body, 0}});
  EXPECT_TRUE(run.all_ok());
  const std::string request = server.requests().at(0);
  EXPECT_TRUE(request.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"));
  EXPECT_NE(request.find("Authorization: Bearer k\r\n"), request.npos);
  EXPECT_TRUE(request.ends_with(body));
}

TEST(LoadClient, ReadsBytesCutAnywhere) {
  LocalServer server([](LoopbackPeer peer, const std::string&) {
    for (const char byte : kHead + text_event("a") + text_event("b") + kUsage + kDone) {
      peer.send({&byte, 1});
    }
  });
  const LoadRun run = load(server, 1);
  EXPECT_TRUE(run.all_ok());
  EXPECT_EQ(run.events, 2);
  EXPECT_EQ(run.answers[0].tokens, 7);
}

TEST(LoadClient, ReadsChats) {
  LocalServer server([](LoopbackPeer peer, const std::string&) {
    peer.send(kHead +
              chunk("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n") +
              chunk("data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n") +
              chunk("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n") + kDone);
  });
  const LoadRun run = load(server, 1);
  EXPECT_TRUE(run.all_ok());
  EXPECT_EQ(run.events, 1);
}

TEST(LoadClient, AClosedLoopHasSoManyInside) {
  LocalServer server([&](LoopbackPeer peer, const std::string&) {
    server.wait_inside(3);
    std::this_thread::sleep_for(milliseconds(20));
    server.leave();
    peer.send(kHead + text_event("a") + kDone);
  });
  const LoadRun run = load(server, 12, 3);
  EXPECT_TRUE(run.all_ok());
  EXPECT_EQ(server.requests().size(), 12u);
  EXPECT_EQ(server.most_inside, 3);
  EXPECT_GE(run.seconds, 4 * 0.02);
}

TEST(LoadClient, AnOpenLoopDoesNotWaitForAnswers) {
  LocalServer server([&](LoopbackPeer peer, const std::string&) {
    server.wait_inside(5);
    peer.send(kHead + text_event("a") + kDone);
  });
  std::vector<LoadRequest> requests;
  for (int i = 0; i < 5; ++i) requests.push_back({"{}", 0.02 * i});
  const std::int64_t before = now_ns();
  const LoadRun run = run_load({.port = server.port(), .limit_s = 60}, requests);
  EXPECT_TRUE(run.all_ok());
  EXPECT_EQ(server.most_inside, 5);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_GE(run.answers[i].sent_ns - before, static_cast<std::int64_t>(i) * 20'000'000);
  }
}

TEST(LoadClient, AnErrorIsAnAnswerWithItsStatus) {
  LocalServer server([](LoopbackPeer peer, const std::string&) {
    peer.send("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
  });
  const LoadRun run = load(server, 2);
  EXPECT_FALSE(run.all_ok());
  for (const LoadAnswer& answer : run.answers) {
    EXPECT_FALSE(answer.ok);
    EXPECT_EQ(answer.status, 429);
    EXPECT_EQ(answer.events, 0);
  }
}

TEST(LoadClient, AnErrorWithinAStreamIsOne) {
  LocalServer server([](LoopbackPeer peer, const std::string&) {
    peer.send(kHead + text_event("a") + chunk("data: {\"error\":{\"message\":\"the worker died\"}}\n\n") +
              kDone);
  });
  EXPECT_FALSE(load(server, 1).all_ok());
}

TEST(LoadClient, AServerThatHangsUp) {
  std::atomic<int> turn{0};
  LocalServer server([&](LoopbackPeer peer, const std::string&) {
    switch (turn++) {
      case 0: break;  // without a word
      case 1: peer.send(kHead + text_event("a")); break;
      default: peer.send(kHead + text_event("a") + kDone);
    }
  });
  const LoadRun run = load(server, 3, 1);
  EXPECT_FALSE(run.answers[0].ok);
  EXPECT_EQ(run.answers[0].status, 0);
  EXPECT_FALSE(run.answers[1].ok);
  EXPECT_EQ(run.answers[1].events, 1);
  EXPECT_TRUE(run.answers[2].ok);
}

TEST(LoadClient, NobodyListens) {
  int port = 0;
  ::close(troupe::test::listen_on_loopback(&port));
  const LoadRun run = run_at_once(port, "/", {"{}", "{}"}, 5);
  EXPECT_FALSE(run.all_ok());
  EXPECT_EQ(run.answers.size(), 2u);
  EXPECT_EQ(run.seconds, 0);
}

TEST(LoadClient, GivesUpAtTheLimit) {
  std::atomic<bool> over{false};
  LocalServer server([&](LoopbackPeer peer, const std::string& request) {
    peer.send(kHead + text_event("a"));
    if (request.find("quick") != request.npos) {
      peer.send(kDone);
      return;
    }
    while (!over) std::this_thread::sleep_for(milliseconds(2));
  });
  const auto start = std::chrono::steady_clock::now();
  const LoadRun run =
      run_load({.port = server.port(), .limit_s = 2}, {{"quick", 0}, {"slow", 0}, {"late", 60}});
  over = true;
  EXPECT_LT(std::chrono::steady_clock::now() - start, troupe::test::kPatience);
  EXPECT_TRUE(run.answers[0].ok);
  EXPECT_FALSE(run.answers[1].ok);
  EXPECT_EQ(run.answers[1].events, 1);
  EXPECT_FALSE(run.answers[2].ok);
  EXPECT_EQ(run.answers[2].sent_ns, 0);
}

TEST(LoadClient, AnEventWithoutAnEndIsNotKept) {
  std::atomic<bool> over{false};
  LocalServer server([&](LoopbackPeer peer, const std::string&) {
    peer.send(kHead);
    const std::string block = chunk(std::string(1 << 20, 'x'));
    for (int i = 0; i < 64; ++i) {
      if (!peer.send(block)) return;
    }
    while (!over) std::this_thread::sleep_for(milliseconds(2));
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(load(server, 1).all_ok());
  over = true;
  EXPECT_LT(std::chrono::steady_clock::now() - start, troupe::test::kPatience);  // not the limit of the run
}

TEST(LoadClient, KnowsAnAddress) {
  for (const char* host : {"127.0.0.1", "::1", "localhost"}) EXPECT_TRUE(has_address(host)) << host;
  for (const char* host : {"", "1.2.3.4.5", "two words", "[::1]"}) EXPECT_FALSE(has_address(host)) << host;
}

TEST(Percentile, TakesTheNearestRank) {
  EXPECT_EQ(percentile({}, 50), 0);
  EXPECT_EQ(percentile({3, 1, 2}, 50), 2);
  EXPECT_EQ(percentile({3, 1, 2}, 0), 1);
  EXPECT_EQ(percentile({3, 1, 2}, 100), 3);
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(percentile(hundred, 99), 99);
}

}  // namespace
}  // namespace troupe::http
