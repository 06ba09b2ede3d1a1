#include "http/client/load_client.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/clock.h"
#include "http/client/client_connection.h"
#include "http/client/event_reader.h"

namespace troupe::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::size_t kLongestEvent = 1 << 22;  // a stream with a longer one is given up

/// Where the value of `key` begins in an event; null when it is not there. The search for keys is most of
/// what an event costs: std::string_view::find takes three times as long, as it stops at every quote.
const char* value_of(std::string_view event, std::string_view key) {
  const void* found = ::memmem(event.data(), event.size(), key.data(), key.size());
  if (found == nullptr) return nullptr;
  const char* value = static_cast<const char*>(found) + key.size();
  return value < event.data() + event.size() ? value : nullptr;
}

/// One request on a connection of its own.
class LoadStream {
 public:
  LoadStream(asio::io_context& context, const LoadOptions& options, LoadAnswer& answer)
      : connection_(context, {options.host, options.port, options.tls}), answer_(answer) {}
  LoadStream(const LoadStream&) = delete;
  LoadStream& operator=(const LoadStream&) = delete;

  /// `over` is called at the end, and may destroy this.
  void start(const ClientConnection::Places& places, ClientRequest request, std::function<void()> over) {
    over_ = std::move(over);
    request_ = std::move(request);
    answer_.sent_ns = now_ns();
    connection_.connect(places, [this](const Status& status) { status.ok() ? send() : finish(); });
  }

 private:
  void send() {
    connection_.send(
        std::move(request_), [this](std::string_view bytes) { events_.feed(bytes); },
        [this](const Status& status) { status.ok() ? read() : finish(); });
  }

  void read() {
    connection_.read([this](const Status& status) {
      if (connection_.head_done()) answer_.status = connection_.status();
      const bool alive = status.ok() && !connection_.answered() && events_.held() <= kLongestEvent;
      alive ? read() : finish();
    });
  }

  void finish() {
    const auto over = std::move(over_);  // this may end with the call
    over();
  }

  void event(std::string_view text) {
    const std::int64_t now = now_ns();
    if (text == "[DONE]") {
      answer_.ok = connection_.status() == 200 && !failed_;
      answer_.end_ns = now;
      return;
    }
    failed_ = failed_ || text.starts_with("{\"error\":");
    if (const char* usage = value_of(text, "\"completion_tokens\":")) {
      std::from_chars(usage, text.data() + text.size(), answer_.tokens);
    }
    const char* shown = value_of(text, "\"text\":\"");
    if (shown == nullptr) shown = value_of(text, "\"reasoning_content\":\"");
    if (shown == nullptr) shown = value_of(text, "\"content\":\"");
    if (shown == nullptr || *shown == '"') return;
    if (answer_.events++ == 0) {
      answer_.first_ns = now;
    } else {
      answer_.gaps_ms.push_back(static_cast<float>(static_cast<double>(now - answer_.last_ns) * 1e-6));
    }
    answer_.last_ns = now;
  }

  ClientConnection connection_;
  LoadAnswer& answer_;
  ClientRequest request_;
  std::function<void()> over_;
  EventReader events_{[this](std::string_view text) { return event(text), true; }};
  bool failed_ = false;  // an event reported an error
};

/// IPv4 addresses where the host has one: "localhost" is [::1] too, where few servers listen. Empty when it
/// has none.
ClientConnection::Places find_places(const std::string& host, int port) {
  if (host.empty()) return {};  // the resolver takes it for this machine
  asio::io_context context;
  tcp::resolver resolver(context);
  boost::system::error_code error;
  auto places = resolver.resolve(tcp::v4(), host, std::to_string(port), error);
  return error ? resolver.resolve(host, std::to_string(port), error) : places;
}

class Run {
 public:
  Run(const LoadOptions& options, const std::vector<LoadRequest>& requests)
      : options_(options), requests_(requests), places_(find_places(options.host, options.port)) {
    out_.answers.resize(requests.size());
    streams_.resize(requests.size());
  }

  LoadRun go() {
    start_ = Clock::now();
    start_due();
    context_.run_until(start_ + seconds(options_.limit_s));
    const std::int64_t start_ns = start_.time_since_epoch() / std::chrono::nanoseconds(1);
    std::int64_t last = start_ns;
    for (const LoadAnswer& answer : out_.answers) {
      last = std::max(last, answer.end_ns);
      out_.events += answer.events;
    }
    out_.seconds = static_cast<double>(last - start_ns) * 1e-9;
    return std::move(out_);
  }

 private:
  static Duration seconds(double count) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(count));
  }
  bool may_start() const {
    return next_ < requests_.size() && (options_.concurrency <= 0 || open_ < options_.concurrency);
  }

  /// Starts what may start now, and comes back when the next one is due.
  void start_due() {
    for (; may_start() && !places_.empty(); ++next_, ++open_) {
      const TimePoint due = start_ + seconds(requests_[next_].after_s);
      if (due > Clock::now()) {
        timer_.expires_at(due);
        timer_.async_wait([this](const boost::system::error_code& moved) {
          if (!moved) start_due();
        });
        return;
      }
      start(next_);
    }
  }

  void start(std::size_t i) {
    streams_[i] = std::make_unique<LoadStream>(context_, options_, out_.answers[i]);
    streams_[i]->start(places_, {"POST", options_.path, requests_[i].body, options_.api_key}, [this, i] {
      streams_[i].reset();
      --open_;
      start_due();
    });
  }

  const LoadOptions& options_;
  const std::vector<LoadRequest>& requests_;
  const ClientConnection::Places places_;
  LoadRun out_;
  asio::io_context context_{1};
  asio::steady_timer timer_{context_};  // of the next request
  std::vector<std::unique_ptr<LoadStream>> streams_;
  int open_ = 0;
  std::size_t next_ = 0;
  TimePoint start_;
};

}  // namespace

bool LoadRun::all_ok() const {
  return std::all_of(answers.begin(), answers.end(), [](const LoadAnswer& a) { return a.ok; });
}

bool has_address(const std::string& host) { return !find_places(host, 80).empty(); }

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
