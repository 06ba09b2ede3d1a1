#pragma once
// A server on a loopback port before a scripted backend, and a client that sends raw bytes.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
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
#include "support/patience.h"

namespace troupe::http::test {

using nlohmann::json;
using std::chrono::milliseconds;
using troupe::test::kPatience;

/// Keeps what it was given; answers through `script` when one is set.
class FakeBackend : public Backend {
 public:
  void prepare(Call& call) override {
    prepared_from = std::this_thread::get_id();
    call.prepared = std::make_shared<Prepared>();
  }
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
  std::atomic<std::thread::id> prepared_from{};
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

inline int listen_on_loopback(int* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 1024) != 0) std::abort();
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  *port = ntohs(address.sin_port);
  return fd;
}

struct Response {
  int status = 0;
  std::string head;
  std::string body;  ///< decoded when it came in chunks
  bool complete = false;

  std::optional<std::string> header(const std::string& name) const {
    std::size_t at = head.find("\r\n" + name + ": ");
    if (at == head.npos) return {};
    at += name.size() + 4;
    return head.substr(at, head.find("\r\n", at) - at);
  }
  json error() const { return json::parse(body).at("error"); }
};

class Client {
 public:
  /// A small `receive_buffer` makes a reader that stops reading noticeable at once.
  explicit Client(int port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
  }
  ~Client() { close(); }
  Client(const Client&) = delete;

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  /// False when the server stopped taking bytes.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  void post(std::string_view path, std::string_view body, std::string_view extra = {}) {
    send("POST " + std::string(path) +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + std::string(extra) + "\r\n" + std::string(body));
  }
  void get(std::string_view path, std::string_view extra = {}, std::string_view method = "GET") {
    send(std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" +
         std::string(extra) + "\r\n");
  }

  /// One response; `complete` is false when the connection ended or the time ran out before.
  Response receive(bool no_body = false) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    Response response;
    while (data_.find("\r\n\r\n") == data_.npos) {
      if (!fill(deadline)) return response;
    }
    const std::size_t end = data_.find("\r\n\r\n") + 4;
    response.head = data_.substr(0, end);
    data_.erase(0, end);
    response.status = std::stoi(response.head.substr(9, 3));
    if (response.status == 100) return receive();
    if (no_body) {
      response.complete = true;
    } else if (const auto length = response.header("Content-Length")) {
      const std::size_t size = std::stoul(*length);
      while (data_.size() < size) {
        if (!fill(deadline)) return response;
      }
      response.body = data_.substr(0, size);
      data_.erase(0, size);
      response.complete = true;
    } else {
      response.complete = receive_chunks(response.body, deadline);
    }
    return response;
  }

  /// True when the server has closed its side, after reading whatever was still under way.
  bool closed() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (fill(deadline)) {
    }
    return ended_;
  }
  const std::string& rest() const { return data_; }
  /// Reads at most so many bytes and forgets them.
  void read_some(std::size_t bytes) {
    char buffer[256];
    (void)::recv(fd_, buffer, std::min(bytes, sizeof buffer), MSG_DONTWAIT);
  }
  /// True when something can be read within the time.
  bool readable(milliseconds time) {
    pollfd waiting{fd_, POLLIN, 0};
    return ::poll(&waiting, 1, static_cast<int>(time.count())) > 0;
  }
  bool fill_some() { return fill(std::chrono::steady_clock::now() + kPatience); }

 private:
  bool fill(std::chrono::steady_clock::time_point deadline) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd waiting{fd_, POLLIN, 0};
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) <= 0) return false;
    char buffer[16384];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) {
      ended_ = true;
      return false;
    }
    data_.append(buffer, static_cast<std::size_t>(n));
    return true;
  }
  bool receive_chunks(std::string& body, std::chrono::steady_clock::time_point deadline) {
    for (;;) {
      std::size_t line;
      while ((line = data_.find("\r\n")) == data_.npos) {
        if (!fill(deadline)) return false;
      }
      const std::size_t size = std::stoul(data_.substr(0, line), nullptr, 16);
      while (data_.size() < line + 2 + size + 2) {
        if (!fill(deadline)) return false;
      }
      body += data_.substr(line + 2, size);
      data_.erase(0, line + 2 + size + 2);
      if (size == 0) return true;
    }
  }

  int fd_ = -1;
  std::string data_;
  bool ended_ = false;
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
    Client client(port);
    client.get("/health");
    EXPECT_EQ(client.receive().status, 200);
  }

  ServerSetup setup;
  FakeBackend backend;
  std::unique_ptr<Server> server;
  int port = 0;
  int metrics_port = 0;
};

inline const std::string kChat = R"({"messages":[{"role":"user","content":"hi"}]})";

}  // namespace troupe::http::test
