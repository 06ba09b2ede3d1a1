#pragma once
// A server on a loopback port before a scripted backend.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "http/api/openai.h"
#include "http/server/server.h"
#include "support/loopback_server.h"
#include "support/patience.h"
#include "support/raw_client.h"

namespace troupe::http::test {

using nlohmann::json;
using std::chrono::milliseconds;
using troupe::test::kPatience;
using troupe::test::listen_on_loopback;

/// Keeps what it was given; answers through `script` when one is set.
class FakeBackend : public Backend {
 public:
  void submit(Call&& call) override {
    const Exchange exchange = call.exchange;
    submitted_from = std::this_thread::get_id();
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(call));
      changed_.notify_all();
    }
    if (script) script(exchange);
  }
  void cancel(Exchange exchange) override {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(exchange);
    changed_.notify_all();
  }
  Health health() const override {
    asked_from = std::this_thread::get_id();
    if (asked) asked();
    return {.live = live, .state = state, .silent = silent.load()};
  }
  void answered(const AccessRecord& record) override {
    const std::lock_guard lock(mutex_);
    statuses_.push_back(record.status);
    failed_ += record.failed ? 1 : 0;
    changed_.notify_all();
  }

  /// Waits until `count` calls (or cancellations) have come.
  bool wait_calls(std::size_t count) {
    return wait([&] { return calls_.size() >= count; });
  }
  bool wait_cancelled(std::size_t count) {
    return wait([&] { return cancelled_.size() >= count; });
  }
  bool wait_status(std::uint16_t status) {
    return wait([&] { return std::find(statuses_.begin(), statuses_.end(), status) != statuses_.end(); });
  }
  void turned_away(std::string_view, const Status&) override {
    const std::lock_guard lock(mutex_);
    ++turned_away_;
  }
  void handshake_failed(std::string_view, std::string_view why) override {
    const std::lock_guard lock(mutex_);
    handshake_failures_.emplace_back(why);
    changed_.notify_all();
  }

  /// Connections and requests beyond a limit.
  int turned_away_count() {
    const std::lock_guard lock(mutex_);
    return turned_away_;
  }
  /// Waits for a failed handshake and returns why it failed; empty when none did.
  std::string handshake_failure() {
    wait([&] { return !handshake_failures_.empty(); });
    const std::lock_guard lock(mutex_);
    return handshake_failures_.empty() ? std::string() : handshake_failures_.front();
  }
  /// Streams that reported an error.
  int failed() {
    const std::lock_guard lock(mutex_);
    return failed_;
  }
  Call call(std::size_t i) {
    const std::lock_guard lock(mutex_);
    return calls_.at(i);
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return calls_.size();
  }
  std::vector<Exchange> cancelled() {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }

  std::function<void(Exchange)> script;
  std::function<void()> asked;  // for the health, by the thread that handles a request
  std::atomic<Health::State> state{Health::State::ready};
  mutable std::atomic<std::thread::id> asked_from{};  // the thread that handled the last request
  std::atomic<std::thread::id> submitted_from{};
  std::atomic<bool> live{true};
  std::atomic<const char*> silent{""};

 private:
  template <class Done>
  bool wait(Done done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, done);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call> calls_;
  std::vector<Exchange> cancelled_;
  std::vector<std::uint16_t> statuses_;
  int failed_ = 0;
  int turned_away_ = 0;
  std::vector<std::string> handshake_failures_;
};

/// Options first, then start(); the server listens on `port` (and `metrics_port`).
class ServerTest : public ::testing::Test {
 protected:
  void start(bool separate_metrics = false) {
    setup.http.io_threads = 1;
    setup.listen_fd = listen_on_loopback(&port);
    if (separate_metrics) setup.metrics_fd = listen_on_loopback(&metrics_port);
    server = std::make_unique<Server>(setup, backend);
    const Status status = server->start();
    ASSERT_TRUE(status.ok()) << status.message;
  }
  void TearDown() override {
    if (server) server->stop();
  }
  void deliver(Exchange exchange, Output output) {
    output.exchange_id = exchange.id;
    std::vector<Output> outputs;
    outputs.push_back(std::move(output));
    server->deliver(exchange.io, std::move(outputs));
  }
  /// Makes the backend answer everything with an empty JSON object.
  void answer_all() {
    backend.script = [this](Exchange exchange) {
      deliver(exchange, {.kind = Output::Kind::whole, .body = "{}"});
    };
  }
  /// Waits until so many are active: an answer counts until its last byte is out.
  bool becomes_active(std::size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (server->active() != count && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return server->active() == count;
  }
  /// The server still turns: another client is answered.
  void expect_alive() {
    const auto health = http::Client({.port = port}).request("GET", "/health");
    EXPECT_TRUE(health.ok() && health->status == 200) << health.status().message;
  }

  ServerSetup setup;
  FakeBackend backend;
  std::unique_ptr<Server> server;
  int port = 0;
  int metrics_port = 0;
};

inline const std::string kChat = R"({"messages":[{"role":"user","content":"hi"}]})";

}  // namespace troupe::http::test
