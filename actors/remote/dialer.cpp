#include <pthread.h>

#include <algorithm>
#include <condition_variable>

#include "actors/remote/node_facts.h"
#include "actors/remote/relay.h"

namespace troupe::remote {
namespace {

/// How soon an engine that is not there, or has just gone, is looked for again.
constexpr Duration kRetry = std::chrono::milliseconds(300);
/// The same of one that has refused, or that has gone just after it had come.
constexpr Duration kLongRetry = std::chrono::seconds(2);

void pause(Duration length, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any none;
  std::unique_lock lock(mutex);
  none.wait_for(lock, stop, length, [] { return false; });
}

}  // namespace

Dialer::Dialer(RelaySetup setup, ipc::LowerEnd end, std::shared_ptr<ipc::BlockNames> names,
               config::Address engine, std::shared_ptr<const ipc::PatchRegion> region,
               std::vector<ipc::BlockFetches> fetches)
    : setup_(std::move(setup)),
      end_(std::move(end)),
      engine_(std::move(engine)),
      bridge_(end_, ipc::Side::lower, names, {std::move(region), nullptr}),
      peer_{fetches.empty() ? "engine" : "prefill", config::to_string(engine_), "joining", ""} {
  end_.beat_elsewhere();
  end_.heartbeat().store(0, std::memory_order_relaxed);  // no engine is attached
  for (std::size_t rank = 0; rank < fetches.size(); ++rank) {
    clients_.emplace_back(
        KvClient::Setup{setup_.own, setup_.keys.tls, engine_, static_cast<std::int32_t>(rank),
                        static_cast<std::int32_t>(fetches.size()), setup_.log, names,
                        [this](const std::string& why) { kv_refused(why); }},
        std::move(fetches[rank]));
  }
  thread_ = std::jthread([this](const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "relay_write");
    run(stop);
  });
}

Dialer::~Dialer() = default;

PeerState Dialer::peer() const {
  const std::lock_guard lock(mutex_);
  return peer_;
}

void Dialer::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const TimePoint began = Clock::now();
    const std::string why = visit(stop);
    if (stop.stop_requested()) return;
    const bool was_joined = peer().state == "joined";
    if (!why.empty()) tell("absent", why);
    pause(why.empty() || (was_joined && Clock::now() - began < kLongRetry) ? kLongRetry : kRetry, stop);
  }
}

/// Returns why the engine is absent; "" if one side has refused the other.
std::string Dialer::visit(const std::stop_token& stop) {
  const TimePoint deadline = Clock::now() + kGreetingPatience;
  auto stream = Stream::connect(engine_, setup_.keys.tls, deadline, stop);
  if (!stream.ok()) return stream.status().message;
  FrameReader reader;
  const auto answer = greet(**stream, reader, setup_.own, deadline, stop);
  if (!answer.ok() && answer.status().code == Code::forbidden) {
    tell("refused", answer.status().message);
    return "";
  }
  if (!answer.ok()) return answer.status().message;
  const std::string differs = node_difference(answer->facts, "the engine at " + config::to_string(engine_),
                                              setup_.own.facts, "the front at node " + setup_.own.node);
  if (!differs.empty()) {
    tell("refused", differs);
    return "";
  }
  {
    const std::lock_guard lock(mutex_);
    kv_refusal_.clear();
  }
  tell("joined", "");
  std::vector<std::jthread> fetching;
  for (KvClient& client : clients_) {
    fetching.emplace_back([&client](const std::stop_token& asked) {
      ::pthread_setname_np(::pthread_self(), "relay_kv");
      client.run(asked);
    });
  }
  const std::string ended = bridge_.run(**stream, reader, stop);
  fetching.clear();  // asks them to end, and waits
  std::string refusal;
  {
    const std::lock_guard lock(mutex_);
    refusal = kv_refusal_;
  }
  if (refusal.empty()) return ended;
  tell("refused", refusal);
  return "";
}

/// Prompts that it computes would have to be computed again.
void Dialer::kv_refused(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    kv_refusal_ = why;
  }
  bridge_.leave("was left, as it gives no KV blocks: " + why);
}

/// Each change is logged once.
void Dialer::tell(const std::string& state, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (peer_.state == state && peer_.why == why) return;
  peer_.state = state;
  peer_.why = why;
  setup_.log.info("engine", {kv("address", peer_.address), kv("state", state), kv("why", why)});
}

}  // namespace troupe::remote
