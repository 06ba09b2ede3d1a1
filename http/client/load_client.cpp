#include "http/client/load_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "http/client/response_reader.h"

namespace troupe::http {
namespace {

constexpr std::size_t kBuffer = 1 << 18;
constexpr int kEvents = 256;
constexpr std::size_t kLongestEvent = 1 << 22;  // a stream with a longer one is given up

/// One request on a connection of its own.
class Stream {
 public:
  Stream(LoadAnswer& answer, std::string request) : answer_(answer), unsent_(std::move(request)) {}
  ~Stream() {
    if (fd_ < 0) return;
    ::shutdown(fd_, SHUT_RDWR);
    ::close(fd_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int fd() const { return fd_; }
  bool sent() const { return at_ == unsent_.size(); }

  /// `host` is the name that the server's certificate has to have.
  bool open(const addrinfo& address, const TlsContext& tls, const std::string& host) {
    fd_ = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) return false;
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    answer_.sent_ns = now_ns();
    if (::connect(fd_, address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS) return false;
    if (tls == nullptr) return true;
    tls_ = TlsSession::connect(tls, fd_, host);
    return tls_ != nullptr;
  }

  /// What the stream waits for, as epoll's events.
  std::uint32_t interest() const {
    if (blocked_on_ != 0) return blocked_on_;
    return sent() ? std::uint32_t{EPOLLIN} : EPOLLIN | EPOLLOUT;
  }

  /// False when the connection is over.
  bool write() {
    blocked_on_ = 0;
    while (!sent()) {
      if (tls_ != nullptr) {
        std::size_t n = 0;
        const auto progress = tls_->write(std::span(unsent_).subspan(at_), n);
        at_ += n;
        if (progress != TlsSession::Progress::done) return waits(progress);
        continue;
      }
      const ssize_t n = ::send(fd_, unsent_.data() + at_, unsent_.size() - at_, MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      at_ += static_cast<std::size_t>(n);
    }
    return true;
  }

  /// False when the connection is over. `buffer` is only used during the call.
  bool read(std::vector<char>& buffer) {
    blocked_on_ = 0;
    for (;;) {
      if (tls_ != nullptr) {
        std::size_t n = 0;
        const auto progress = tls_->read(buffer, n);
        if (progress != TlsSession::Progress::done) return waits(progress);
        if (!feed({buffer.data(), n})) return false;
        continue;
      }
      const ssize_t n = ::recv(fd_, buffer.data(), buffer.size(), 0);
      if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      if (n == 0) return false;
      if (!feed({buffer.data(), static_cast<std::size_t>(n)})) return false;
      if (static_cast<std::size_t>(n) < buffer.size()) return true;
    }
  }

 private:
  /// False when the connection is over.
  bool waits(TlsSession::Progress progress) {
    const bool wants_read = progress == TlsSession::Progress::wants_read;
    blocked_on_ = wants_read ? std::uint32_t{EPOLLIN} : std::uint32_t{EPOLLIN | EPOLLOUT};
    return wants_read || progress == TlsSession::Progress::wants_write;
  }

  /// False when the bytes are no HTTP response, or an event does not end.
  bool feed(std::string_view bytes) {
    const bool http = reader_.feed(bytes);
    if (reader_.head_done()) answer_.status = reader_.status();
    std::string& body = reader_.body();
    std::size_t from = 0;
    for (std::size_t end; (end = body.find("\n\n", std::max(from, searched_))) != std::string::npos;
         from = end + 2) {
      event(std::string_view(body).substr(from, end - from));
      searched_ = 0;
    }
    body.erase(0, from);
    searched_ = body.empty() ? 0 : body.size() - 1;
    return http && body.size() <= kLongestEvent;
  }

  void event(std::string_view text) {
    if (!text.starts_with("data: ")) return;
    text.remove_prefix(6);
    const std::int64_t now = now_ns();
    if (text == "[DONE]") {
      answer_.ok = answer_.status == 200 && !failed_;
      answer_.end_ns = now;
      return;
    }
    failed_ = failed_ || text.starts_with("{\"error\":");
    constexpr std::string_view kTokens = "\"completion_tokens\":";
    if (const std::size_t usage = text.find(kTokens); usage != std::string_view::npos) {
      answer_.tokens = std::atoi(text.data() + usage + kTokens.size());
    }
    const bool completion = text.find("\"text\":\"") != std::string_view::npos;
    const bool thought = text.find("\"reasoning_content\":\"") != std::string_view::npos;  // never empty
    const bool has_text = completion ? text.find("\"text\":\"\"") == std::string_view::npos
                                     : thought || (text.find("\"content\":\"") != std::string_view::npos &&
                                                   text.find("\"content\":\"\"") == std::string_view::npos);
    if (!has_text) return;
    if (answer_.events++ == 0) {
      answer_.first_ns = now;
    } else {
      answer_.gaps_ms.push_back(static_cast<float>(static_cast<double>(now - answer_.last_ns) * 1e-6));
    }
    answer_.last_ns = now;
  }

  LoadAnswer& answer_;
  std::string unsent_;
  std::size_t at_ = 0;
  int fd_ = -1;
  std::unique_ptr<TlsSession> tls_;  // null: plain HTTP
  std::uint32_t blocked_on_ = 0;     // what TLS waits for, when it has said so
  ResponseReader reader_;
  std::size_t searched_ = 0;  // bytes of the body that hold no end of an event
  bool failed_ = false;       // an event reported an error
};

std::string request_text(const LoadOptions& options, const std::string& body) {
  return "POST " + options.path + " HTTP/1.1\r\nHost: " + options.host +
         "\r\nConnection: close\r\nContent-Type: application/json\r\n" +
         (options.api_key.empty() ? "" : "Authorization: Bearer " + options.api_key + "\r\n") +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, FreeAddresses>;

/// An IPv4 address where the host has one: "localhost" is [::1] too, where few servers listen. Null when it
/// has none.
AddressList find_address(const std::string& host, int port) {
  for (const int family : {AF_INET, AF_UNSPEC}) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_flags = AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) == 0)
      return AddressList(found);
  }
  return nullptr;
}

class Run {
 public:
  Run(const LoadOptions& options, const std::vector<LoadRequest>& requests)
      : options_(options),
        requests_(requests),
        streams_(requests.size()),
        poller_(::epoll_create1(EPOLL_CLOEXEC)) {
    out_.answers.resize(requests.size());
    address_ = find_address(options.host, options.port);
  }
  ~Run() { ::close(poller_); }

  LoadRun go() {
    start_ns_ = now_ns();
    std::vector<char> buffer(kBuffer);
    while ((next_ < requests_.size() || open_ > 0) && elapsed_s() < options_.limit_s) {
      start_due();
      epoll_event events[kEvents];
      const int ready = ::epoll_wait(poller_, events, kEvents, wait_ms());
      for (int e = 0; e < ready; ++e)
        turn(static_cast<std::size_t>(events[e].data.u64), events[e].events, buffer);
    }
    std::int64_t last = start_ns_;
    for (const LoadAnswer& answer : out_.answers) {
      last = std::max(last, answer.end_ns);
      out_.events += answer.events;
    }
    out_.seconds = static_cast<double>(last - start_ns_) * 1e-9;
    return std::move(out_);
  }

 private:
  double elapsed_s() const { return static_cast<double>(now_ns() - start_ns_) * 1e-9; }

  bool may_start() const {
    return next_ < requests_.size() && (options_.concurrency <= 0 || open_ < options_.concurrency);
  }

  int wait_ms() const {
    constexpr double kLongest = 100;
    if (!may_start()) return static_cast<int>(kLongest);
    return static_cast<int>(std::clamp((requests_[next_].after_s - elapsed_s()) * 1000, 0.0, kLongest));
  }

  void start_due() {
    while (may_start() && requests_[next_].after_s <= elapsed_s()) {
      const std::size_t i = next_++;
      streams_[i] = std::make_unique<Stream>(out_.answers[i], request_text(options_, requests_[i].body));
      if (address_ == nullptr || !streams_[i]->open(*address_, options_.tls, options_.host)) {
        streams_[i].reset();
        continue;
      }
      ++open_;
      epoll_event event{};
      event.events = streams_[i]->interest();
      event.data.u64 = i;
      ::epoll_ctl(poller_, EPOLL_CTL_ADD, streams_[i]->fd(), &event);
    }
  }

  void turn(std::size_t i, std::uint32_t what, std::vector<char>& buffer) {
    Stream& stream = *streams_[i];
    const std::uint32_t before = stream.interest();
    bool alive = true;
    if (!stream.sent()) alive = stream.write();
    if (alive && (what & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) alive = stream.read(buffer);
    if (alive && stream.interest() != before) {
      epoll_event event{};
      event.events = stream.interest();
      event.data.u64 = i;
      ::epoll_ctl(poller_, EPOLL_CTL_MOD, stream.fd(), &event);
    }
    if (alive) return;
    streams_[i].reset();
    --open_;
  }

  const LoadOptions& options_;
  const std::vector<LoadRequest>& requests_;
  std::vector<std::unique_ptr<Stream>> streams_;
  LoadRun out_;
  AddressList address_;
  int poller_;
  int open_ = 0;
  std::size_t next_ = 0;
  std::int64_t start_ns_ = 0;
};

}  // namespace

bool LoadRun::all_ok() const {
  return std::all_of(answers.begin(), answers.end(), [](const LoadAnswer& a) { return a.ok; });
}

bool has_address(const std::string& host) { return find_address(host, 80) != nullptr; }

LoadRun run_load(const LoadOptions& options, const std::vector<LoadRequest>& requests) {
  return Run(options, requests).go();
}

LoadRun run_at_once(int port, const std::string& path, const std::vector<std::string>& bodies,
                    double limit_s) {
  std::vector<LoadRequest> requests;
  for (const std::string& body : bodies) requests.push_back({body, 0});
  return run_load({.port = port, .path = path, .limit_s = limit_s}, requests);
}

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(p / 100 * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

}  // namespace troupe::http
