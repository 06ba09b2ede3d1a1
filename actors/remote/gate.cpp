#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "actors/remote/node_facts.h"
#include "actors/remote/relay.h"

namespace troupe::remote {
namespace {

constexpr int kLookMs = 100;
/// Until a connection is accepted again that could not be.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
/// Connections that are open at a time beyond those with a place: strangers must not take all threads.
constexpr std::size_t kMostStrangers = 16;

/// "10.0.0.5:41234"
std::string text_of(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), port.data(),
                    port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return std::string(host.data()) + ":" + port.data();
}

/// True when accept4() has failed for a reason that stays: mostly the process has no descriptor left. The
/// connection is in the queue still, and poll() returns for it at once.
bool must_pause(int error) {
  return error != EAGAIN && error != EWOULDBLOCK && error != EINTR && error != ECONNABORTED;
}

}  // namespace

Gate::Gate(RelaySetup setup, std::vector<ipc::UpperEnd> ends, const std::shared_ptr<ipc::BlockNames>& names,
           int listen, std::string name, const std::shared_ptr<PixelStore>& pixels, KvServer* kv)
    : setup_(std::move(setup)),
      listen_(listen),
      name_(std::move(name)),
      kv_(kv),
      most_visits_(ends.size() * (1 + (kv == nullptr ? 0 : std::size_t{model::kMostRanks})) +
                   kMostStrangers) {
  for (ipc::UpperEnd& end : ends) {
    places_.emplace_back(std::move(end), names, pixels);
    places_.back().end.beat_elsewhere();
  }
  thread_ = std::jthread([this](const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "relay_accept");
    run(stop);
  });
}

Gate::~Gate() = default;

void Gate::run(const std::stop_token& stop) {
  bool paused = false;
  while (!stop.stop_requested()) {
    std::erase_if(visits_, [](const Visit& one) { return one.over->load(); });
    pollfd fd{listen_, POLLIN, 0};
    if (::poll(&fd, 1, kLookMs) <= 0) continue;
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    ipc::Fd socket(
        ::accept4(listen_, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (const int error = errno; !socket && must_pause(error)) {
      if (!std::exchange(paused, true))
        setup_.log.warning("accept_failed", {kv("why", std::strerror(error))});
      std::this_thread::sleep_for(kAcceptPause);
      continue;
    }
    paused = paused && !socket;
    // Beyond the limit a connection is closed at once: fronts try again.
    if (!socket || visits_.size() >= most_visits_) continue;
    Visit& visit = visits_.emplace_back();
    visit.thread = std::jthread([this, over = visit.over, from = text_of(address, size),
                                 socket = std::move(socket)](const std::stop_token& asked) mutable {
      ::pthread_setname_np(::pthread_self(), "relay_write");
      serve(std::move(socket), from, asked);
      *over = true;
    });
  }
  visits_.clear();  // asks them to end, and waits
}

void Gate::serve(ipc::Fd socket, const std::string& from, const std::stop_token& stop) {
  const TimePoint deadline = Clock::now() + kGreetingPatience;
  auto stream = Stream::accept(std::move(socket), setup_.keys.tls);
  if (!stream.ok()) return;
  FrameReader reader;
  const auto greeting = await_greeting(**stream, reader, deadline, stop);
  if (!greeting.ok()) {
    setup_.log.warning("stranger", {kv("from", from), kv("why", greeting.status().message)});
    return;
  }
  const std::string front = "node " + greeting->node + " (" + from + ")";
  std::string why =
      node_difference(setup_.own.facts, name_, greeting->facts, "the front at node " + greeting->node);
  if (why.empty() && greeting->kv) return serve_kv(**stream, *greeting, stop);
  const std::string server = greeting->server.empty() ? "" : greeting->node + " " + greeting->server;
  Place* const place = why.empty() ? take_place(front, server, deadline, stop, why) : nullptr;
  if (place == nullptr && why.empty()) return;
  if (place == nullptr) {
    setup_.log.warning("front_refused", {kv("front", front), kv("why", why)});
    return refuse(**stream, why, deadline, stop);
  }
  setup_.log.info("front_joined", {kv("front", front)});
  place->bridge.put_names_first(kv_ != nullptr && is_decode_instance(greeting->facts));
  std::string ended = "did not take the welcome";
  if (welcome(**stream, setup_.own, deadline, stop)) ended = place->bridge.run(**stream, reader, stop);
  setup_.log.info("front_left", {kv("front", front), kv("why", ended)});
  {
    const std::lock_guard lock(mutex_);
    place->taken = false;
  }
  left_.notify_all();
}

void Gate::serve_kv(Stream& stream, const RelayGreeting& greeting, const std::stop_token& stop) {
  const TimePoint deadline = Clock::now() + kGreetingPatience;
  std::string why = kv_ == nullptr ? "gives no KV blocks away" : kv_->refusal(*greeting.kv);
  if (!why.empty()) {
    setup_.log.warning("kv_refused", {kv("node", greeting.node), kv("why", why)});
    return refuse(stream, name_ + " " + why, deadline, stop);
  }
  RelayGreeting answer = setup_.own;
  answer.kv = greeting.kv;
  setup_.log.info("kv_joined", {kv("node", greeting.node), kv("rank", greeting.kv->rank)});
  why = "did not take the welcome";
  if (welcome(stream, answer, deadline, stop)) why = kv_->serve(stream, *greeting.kv, stop);
  setup_.log.info("kv_left", {kv("node", greeting.node), kv("rank", greeting.kv->rank), kv("why", why)});
}

/// Null, and `why`, when the front cannot be served; without `why` when its server's connection before this
/// one has not ended by the deadline. A server that connects again gets the place that it had: there the
/// engine lets it in when its former sequences have ended, which have the keys of those that it brings now.
Gate::Place* Gate::take_place(const std::string& front, const std::string& server, TimePoint deadline,
                              const std::stop_token& stop, std::string& why) {
  std::unique_lock lock(mutex_);
  const auto had = std::find_if(places_.begin(), places_.end(), [&](const Place& place) {
    return !server.empty() && place.server == server;
  });
  const auto left = [&] { return had == places_.end() || !had->taken || had->server != server; };
  if (!left_.wait_until(lock, stop, deadline, left)) return nullptr;
  const bool again = had != places_.end() && had->server == server;
  const auto free =
      again ? had
            : std::find_if(places_.begin(), places_.end(), [](const Place& place) { return !place.taken; });
  if (free == places_.end() || draining_) {
    why = name_ +
          (draining_ ? " is ending" : " serves " + std::to_string(places_.size()) + " fronts already") +
          ", and cannot take " + front;
    return nullptr;
  }
  free->taken = true;
  free->front = front;
  free->server = server;
  return &*free;
}

std::vector<PeerState> Gate::peers() const {
  const std::lock_guard lock(mutex_);
  std::vector<PeerState> out;
  for (const Place& place : places_) {
    if (place.taken) out.push_back({"front", place.front, "joined", ""});
  }
  return out;
}

void Gate::beat() {
  for (Place& place : places_) place.end.beat();
}

void Gate::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  for (Place& place : places_) place.bridge.drain();
}

bool Gate::idle() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(places_.begin(), places_.end(),
                     [](const Place& place) { return !place.taken || place.bridge.idle(); });
}

EngineCounts Gate::counts() const {
  EngineCounts most;
  for (const Place& place : places_) {
    if (const EngineCounts counts = place.bridge.counts(); counts.generated_tokens >= most.generated_tokens)
      most = counts;
  }
  return most;
}

}  // namespace troupe::remote
