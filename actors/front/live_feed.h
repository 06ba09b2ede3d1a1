#pragma once
// The live state of the engine as server-sent events, for /v1/troupe/events. One thread looks at the engine
// twice a second, once for all watchers, and not at all while there is none. Its events:
//
//   opening   once: who there is, of topology_json()
//   state     twice a second, of live_event()
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/front/request_traces.h"
#include "actors/observation_messages.h"
#include "base/clock.h"
#include "base/status.h"
#include "http/server/backend.h"

namespace troupe {

/// One look at the engine and its neighbours.
struct LiveState {
  std::string state;   ///< of the engine: loading, ready, restarting, draining
  std::string server;  ///< what `troupe status` shows, as JSON; empty when the supervisor did not answer
  std::vector<ActorReport> actors;
  std::uint64_t generated_tokens = 0;  ///< since the engine's start
  std::int64_t prompt_tokens = 0;      ///< of admitted sequences, likewise
  std::vector<RequestTrace> requests;  ///< newest first
};

/// The state as the data of an event, one line of JSON:
///   {"t_ms","state","server":{…}|null,"tokens":{"generated","prompt"},
///    "actors":[{"name","number","answered","restarts","mailbox","answer_ms"}],
///    "requests":[{"id","age_ms","steps":[{"actor","event","ms","details"}]}],"request":{…}|null}
/// `t_ms` counts on the monotonic clock. `request` is the one that the watcher follows.
std::string live_event(const LiveState& state, const RequestTrace* request, std::int64_t now_ns);

class LiveFeed {
 public:
  struct Setup {
    std::function<std::string()> opening;   ///< data of the first event of a stream; must not wait
    std::function<LiveState()> look;        ///< on the feed's thread; may take a while
    const RequestTraces* traces = nullptr;  ///< outlives the feed
    std::function<void(std::uint32_t io, std::vector<http::Output>&&)> deliver;
    Duration period = std::chrono::milliseconds(500);
  };
  static constexpr std::size_t kMaxWatchers = 32;

  explicit LiveFeed(Setup setup);
  ~LiveFeed();
  LiveFeed(const LiveFeed&) = delete;
  LiveFeed& operator=(const LiveFeed&) = delete;

  // Both are for I/O threads: they wait for nothing but a short lock.
  /// Begins a stream, which also follows `request` unless that is empty. Refused above kMaxWatchers and after
  /// end().
  Status watch(http::Exchange exchange, std::string request);
  /// The client has left. False when it was no watcher.
  bool leave(http::Exchange exchange);
  /// Ends every stream; the server is shutting down.
  void end();

 private:
  struct Watcher {
    http::Exchange exchange;
    std::string request;
  };
  void run(const std::stop_token& stop);
  void tell(const LiveState& state, const std::vector<Watcher>& watchers) const;

  const Setup setup_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Watcher> watchers_;
  bool fresh_ = false;  // somebody has come and has seen no state yet
  bool ended_ = false;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace troupe
