#include "bench/load.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "base/clock.h"

namespace troupe::bench {
namespace {

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd);
    return -1;
  }
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

/// Counts events in a byte stream whose cuts may lie anywhere.
class EventCounter {
 public:
  explicit EventCounter(StreamResult& result) : result_(result) {}

  void feed(std::string_view bytes) {
    pending_ += bytes;
    if (result_.status == 0) {
      if (pending_.size() < 12) return;
      result_.status = std::atoi(pending_.c_str() + 9);
    }
    std::size_t from = 0;
    for (;;) {
      const std::size_t end = pending_.find("\n\n", from);
      if (end == std::string::npos) break;
      event(std::string_view(pending_).substr(from, end - from));
      from = end + 2;
    }
    pending_.erase(0, from);
  }

 private:
  void event(std::string_view text) {
    const std::size_t at = text.find("data: ");
    if (at == std::string_view::npos) return;
    text.remove_prefix(at + 6);
    if (text == "[DONE]") {
      result_.ok = result_.status == 200;
      result_.last_ns = now_ns();
      return;
    }
    constexpr std::string_view kTokens = "\"completion_tokens\":";
    if (const std::size_t usage = text.find(kTokens); usage != std::string_view::npos) {
      result_.tokens = std::atoi(text.data() + usage + kTokens.size());
    }
    const bool has_text = text.find("\"text\":\"") != std::string_view::npos
                              ? text.find("\"text\":\"\"") == std::string_view::npos
                              : text.find("\"content\":\"") != std::string_view::npos &&
                                    text.find("\"content\":\"\"") == std::string_view::npos;
    if (!has_text) return;
    if (result_.events++ == 0) result_.first_ns = now_ns();
  }

  StreamResult& result_;
  std::string pending_;
};

}  // namespace

bool LoadResult::all_ok() const {
  return std::all_of(streams.begin(), streams.end(), [](const StreamResult& s) { return s.ok; });
}

LoadResult run_streams(int port, const std::string& path, const std::vector<std::string>& bodies, double limit_s) {
  LoadResult out;
  out.streams.resize(bodies.size());
  std::vector<int> fds;
  std::vector<EventCounter> counters;
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    fds.push_back(connect_to(port));
    counters.emplace_back(out.streams[i]);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (fds[i] >= 0) ::epoll_ctl(poller, EPOLL_CTL_ADD, fds[i], &event);
  }
  const std::int64_t start = now_ns();
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    out.streams[i].sent_ns = now_ns();
    send_all(fds[i], "POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: "
                     "application/json\r\nContent-Length: " + std::to_string(bodies[i].size()) + "\r\n\r\n" + bodies[i]);
  }
  std::size_t open = static_cast<std::size_t>(std::count_if(fds.begin(), fds.end(), [](int fd) { return fd >= 0; }));
  std::vector<char> buffer(1 << 18);
  while (open > 0 && static_cast<double>(now_ns() - start) * 1e-9 < limit_s) {
    epoll_event events[64];
    const int ready = ::epoll_wait(poller, events, 64, 100);
    for (int e = 0; e < ready; ++e) {
      const auto i = static_cast<std::size_t>(events[e].data.u64);
      const ssize_t n = ::recv(fds[i], buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n > 0) {
        counters[i].feed({buffer.data(), static_cast<std::size_t>(n)});
      } else if (n == 0 || errno != EAGAIN) {
        ::close(fds[i]);
        fds[i] = -1;
        --open;
      }
    }
  }
  for (const int fd : fds) {
    if (fd >= 0) ::close(fd);
  }
  ::close(poller);
  std::int64_t last = start;
  for (const StreamResult& stream : out.streams) {
    last = std::max(last, stream.last_ns);
    out.events += stream.events;
  }
  out.seconds = static_cast<double>(last - start) * 1e-9;
  return out;
}

int http_get(int port, const std::string& path, std::string* body) {
  const int fd = connect_to(port);
  if (fd < 0) return 0;
  std::string answer;
  if (send_all(fd, "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")) {
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) answer.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(fd);
  if (answer.size() < 12) return 0;
  const std::size_t end = answer.find("\r\n\r\n");
  if (body != nullptr && end != std::string::npos) *body = answer.substr(end + 4);
  return std::atoi(answer.c_str() + 9);
}

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(p / 100 * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

}  // namespace troupe::bench
