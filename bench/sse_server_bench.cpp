// The HTTP front end alone: 64 streams, one token a chunk, from a backend that only builds the chunks, to
// clients in the same process, so that server and clients share the machine's cores as they would with a
// load generator on the same host. They are bare sockets, so that the bound and the server have the same
// reader.
//
//   sse_server.stream      tokens a second over 64 streams, each token its own event and chunk. Bound: the
//                          same frames through bare send and recv, one call each; the server may pass it,
//                          as it writes what two steps left for a socket in one call
//   sse_server.added_ttft  median time from a client's send to its first frame, best of three rounds, while
//                          64 streams run at half of the demanded throughput
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "bench/report.h"
#include "http/api/openai.h"
#include "http/server/server.h"

namespace troupe::http {
namespace {

constexpr int kStreams = 64;
constexpr double kSeconds = 2.0;
constexpr int kProbes = 100;
constexpr double kMustRate = 75000;

const AnswerFrame& frame() {
  static const AnswerFrame frame(Api::chat, "chatcmpl-0123456789abcdef0123456789abcdef", "demo", 1700000000);
  return frame;
}

std::string token_frame() {
  std::string out;
  append_piece(out, frame(), {.text = " token"});
  return out;
}

// Plays the engine: every step gives each running stream one token, in one batch. `step_rate` 0 steps as
// fast as the front end takes them, never more than two steps ahead of what the clients have read.
class Producer : public Backend {
 public:
  void submit(Call&& call) override {
    const std::lock_guard lock(mutex_);
    arrived_.push_back(call.exchange);
  }
  void cancel(Exchange exchange) override {
    const std::lock_guard lock(mutex_);
    left_.push_back(exchange.id);
  }
  Health health() const override { return {.live = true, .state = Health::State::ready}; }

  void run(Server& server, const std::atomic<bool>& stop) {
    TimePoint next = Clock::now();
    while (!stop) {
      take_in(server);
      const double rate = step_rate;
      if (running_.empty() || (rate == 0 && produced - consumed > 2 * running_.size())) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        continue;
      }
      std::vector<Output> batch;
      batch.reserve(running_.size());
      for (const Exchange& exchange : running_) {
        Output& output = batch.emplace_back(Output{.exchange_id = exchange.id});
        output.body.reserve(256);
        append_piece(output.body, frame(), {.text = " token"});
      }
      produced += batch.size();
      server.deliver(0, std::move(batch));
      if (rate == 0) continue;
      next = std::max(next + std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 / rate)), Clock::now());
      // Newcomers are answered at once, not at the next step.
      while (!stop && Clock::now() < next) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        take_in(server);
      }
    }
  }

  std::atomic<double> step_rate{0};
  std::atomic<std::uint64_t> produced{0};
  std::atomic<std::uint64_t> consumed{0};

 private:
  void take_in(Server& server) {
    std::vector<Exchange> arrived;
    std::vector<std::uint64_t> left;
    {
      const std::lock_guard lock(mutex_);
      arrived.swap(arrived_);
      left.swap(left_);
    }
    for (const std::uint64_t id : left) {
      std::erase_if(running_, [&](const Exchange& exchange) { return exchange.id == id; });
    }
    for (const Exchange& exchange : arrived) {
      running_.push_back(exchange);
      ++produced;
      Output first{.exchange_id = exchange.id};
      append_role(first.body, frame(), 0);
      std::vector<Output> batch;
      batch.push_back({.exchange_id = exchange.id, .kind = Output::Kind::head});
      batch.push_back(std::move(first));
      server.deliver(exchange.io, std::move(batch));
    }
  }

  std::mutex mutex_;
  std::vector<Exchange> arrived_;
  std::vector<std::uint64_t> left_;
  std::vector<Exchange> running_;
};

int loopback_listener(std::uint16_t* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  TROUPE_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(fd, 512) == 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  *port = ntohs(address.sin_port);
  return fd;
}

int connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  TROUPE_CHECK(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

const std::string& request() {
  static const std::string request = [] {
    const std::string body = R"({"messages":[{"role":"user","content":"hello there"}],"stream":true})";
    return "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
           "application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }();
  return request;
}

// Reads all streams and counts events by their blank lines.
void read_streams(const std::vector<int>& fds, const std::atomic<bool>& stop,
                  std::atomic<std::uint64_t>& events) {
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  for (const int fd : fds) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    ::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  }
  std::vector<char> buffer(64 << 10);
  epoll_event ready[kStreams];
  while (!stop) {
    const int n = ::epoll_wait(poller, ready, kStreams, 50);
    std::uint64_t seen = 0;
    for (int i = 0; i < n; ++i) {
      const ssize_t bytes = ::recv(ready[i].data.fd, buffer.data(), buffer.size(), 0);
      const std::string_view text(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
      for (std::size_t at = 0; (at = text.find("data: ", at)) != text.npos; at += 6) ++seen;
    }
    events += seen;
  }
  ::close(poller);
}

// The same frames from one thread to another over 64 sockets, with nothing but send and recv.
double bare_rate() {
  std::uint16_t port = 0;
  const int listener = loopback_listener(&port);
  std::vector<int> out, in;
  for (int i = 0; i < kStreams; ++i) {
    in.push_back(connect_to(port));
    out.push_back(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  }
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> events{0};
  std::thread reader([&] { read_streams(in, stop, events); });
  const std::string bytes = token_frame();
  const TimePoint begin = Clock::now();
  std::uint64_t sent = 0;
  while (Clock::now() - begin < std::chrono::duration<double>(kSeconds / 2)) {
    for (const int fd : out) ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    sent += kStreams;
    while (sent - events > 2 * kStreams) std::this_thread::yield();
  }
  const double rate =
      static_cast<double>(events) / std::chrono::duration<double>(Clock::now() - begin).count();
  stop = true;
  reader.join();
  for (const int fd : out) ::close(fd);
  for (const int fd : in) ::close(fd);
  ::close(listener);
  return rate;
}

// Median, over single requests one after another, of the time to the first frame.
double median_first_frame_ms(std::uint16_t port) {
  std::vector<double> times;
  std::vector<char> buffer(64 << 10);
  for (int i = 0; i < kProbes; ++i) {
    const int fd = connect_to(port);
    const TimePoint begin = Clock::now();
    TROUPE_CHECK(::send(fd, request().data(), request().size(), MSG_NOSIGNAL) > 0);
    std::string seen;
    while (seen.find("data: ") == seen.npos) {
      const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), 0);
      TROUPE_CHECK(n > 0);
      seen.append(buffer.data(), static_cast<std::size_t>(n));
    }
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    ::close(fd);
  }
  std::nth_element(times.begin(), times.begin() + kProbes / 2, times.end());
  return times[kProbes / 2];
}

int run(int argc, char** argv) {
  bench::Report report(argc, argv);
  const double bound = bare_rate();

  Producer producer;
  ServerSetup setup;
  setup.http.io_threads = 1;
  std::uint16_t port = 0;
  setup.listen_fd = loopback_listener(&port);
  Server server(setup, producer);
  TROUPE_CHECK(server.start().ok());
  std::atomic<bool> stop{false};
  std::thread engine([&] { producer.run(server, stop); });
  std::vector<int> fds;
  for (int i = 0; i < kStreams; ++i) {
    fds.push_back(connect_to(port));
    TROUPE_CHECK(::send(fds.back(), request().data(), request().size(), MSG_NOSIGNAL) > 0);
  }
  std::thread reader([&] { read_streams(fds, stop, producer.consumed); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t before = producer.consumed;
    const TimePoint begin = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
    const double rate = static_cast<double>(producer.consumed - before) /
                        std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, rate);
  }
  report.row(
      {.name = "sse_server.stream", .value = best, .unit = "tok/s", .bound = bound, .must = kMustRate});

  producer.step_rate = kMustRate / 2 / kStreams;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  double ttft = median_first_frame_ms(port);
  for (int round = 0; round < 2; ++round) ttft = std::min(ttft, median_first_frame_ms(port));
  report.row({.name = "sse_server.added_ttft",
              .value = ttft,
              .unit = "ms",
              .must = 1.0,
              .better = bench::Better::lower});
  stop = true;
  engine.join();
  reader.join();
  server.stop();
  for (const int fd : fds) ::close(fd);
  return report.all_met() ? 0 : 1;
}

}  // namespace
}  // namespace troupe::http

int main(int argc, char** argv) { return troupe::http::run(argc, argv); }
