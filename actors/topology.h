#pragma once
// The actors of the engine process: which there are, in which order they start, what happens when one dies, what
// bounds their mailboxes. topology.cpp is the only file that spawns actors.
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/engine/heart.h"
#include "actors/gateway/gateway_actor.h"
#include "actors/metrics/registry.h"
#include "actors/protocol.h"
#include "actors/root_actor.h"
#include "actors/session/session_host_actor.h"
#include "actors/tokenizer/encoder.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "config/options.h"
#include "ipc/link.h"

namespace troupe {

struct FormPulses;  // actors/grammar/form_service.h

/// One row of the table of actors. CAF's mailboxes are unbounded: each sender limits what it has out, as the row
/// says, with what happens at the limit.
struct Role {
  const char* name;
  OnDown on_down;
  const char* thread;     ///< pool, or one of its own
  const char* bound;      ///< who limits its mailbox
  const char* when_full;
  const char* why;        ///< the reason for on_down, in one sentence
};

/// In start order.
inline constexpr Role kRoles[] = {
    {"metrics", OnDown::escalate, "pool", "one message a step and a request", "none",
     "Every part reports to it by handle, and a restart of the engine costs less than recasting them all."},
    {"worker_link", OnDown::escalate, "pool, and one receiving thread", "max_steps_in_flight plans and their masks", "SCHEDULER waits",
     "Its end means that the ring or the worker cannot be trusted."},
    {"rank_group", OnDown::escalate, "pool", "max_steps_in_flight plans and their masks", "SCHEDULER waits",
     "It alone knows which ranks have answered a step."},
    {"cache", OnDown::escalate, "pool", "one CacheAsks a step", "SCHEDULER waits",
     "Its block tables are the truth about the worker's memory."},
    {"grammar", OnDown::escalate, "own, and helpers", "GATEWAY's credits; one GrammarStep a step", "SCHEDULER waits",
     "It alone knows how far each answer is in its form, and steps wait for its masks."},
    {"scheduler", OnDown::escalate, "pool", "--max-queued-requests, --max-queued-tokens", "429",
     "It alone knows which plan is in flight."},
    {"tokenizer", OnDown::restart, "own", "two prompts of each SESSION HOST", "SESSION HOST keeps the next ones, short ones first",
     "It holds nothing: its requests fail, the next ones find a new one."},
    {"session", OnDown::escalate, "pool", "GATEWAY's credits; output by the connection's buffer", "429; the client is cut off",
     "Its sessions hold the text that clients have already seen."},
    {"gateway", OnDown::escalate, "pool", "--max-concurrency", "429",
     "Its count of open requests would be lost, and with it the bound on them."},
};

struct CastSetup {
  config::Options options;  ///< resolved
  std::vector<std::shared_ptr<ipc::EngineEnd>> links;  ///< by rank, at least one
  std::uint64_t spec_hash = 0;
  std::shared_ptr<const Encoder> encoder;
  std::uint32_t tokenizers = 1;  ///< besides the one for long texts
  std::shared_ptr<const SessionContext> sessions;
  std::string executable = "/proc/self/exe";  ///< of GRAMMAR's compiling process
  std::uint32_t io_threads = 1;
  metrics::Constants constants;
  std::shared_ptr<HealthCell> health;
  Deliver deliver;
  std::shared_ptr<std::atomic<std::uint64_t>> progress;  ///< counts generated tokens; may be null
  std::string config_json;  ///< what /config-info answers
  std::function<Log(const std::string& actor)> log;
};

/// `from` holds a handle of `to` and sends to it.
struct Arrow {
  std::string from, to;
  auto operator<=>(const Arrow&) const = default;
};

/// The actor system with every actor in it.
class Cast {
 public:
  /// Starts every actor in table order, and the ROOT over them.
  explicit Cast(CastSetup setup);
  ~Cast();  ///< ends the actors in reverse order and waits for them

  Cast(const Cast&) = delete;
  Cast& operator=(const Cast&) = delete;

  const gateway_actor& gateway() const { return gateway_; }
  const metrics_actor& metrics() const { return metrics_; }
  /// Tells METRICS which processes the supervisor has.
  void report(ProcessReports processes) { caf::anon_send(metrics_, std::move(processes)); }

  /// Who was given whose handle, sorted.
  const std::vector<Arrow>& arrows() const { return arrows_; }

  /// The state of every part; not ok when an actor does not answer within the time given.
  Result<EngineStatus> status(Duration patience);

  /// The same without waiting: nothing when an actor does not answer within the time given.
  std::future<std::optional<EngineStatus>> ask_status(Duration patience);

  /// A report of every actor; not ok when ROOT does not answer within the time given.
  Result<std::vector<ActorReport>> actors(Duration patience);

  /// Refuses new requests from now on; open ones go on. drained() becomes true when none is open.
  void drain();
  bool drained() const { return *drained_; }

  /// Lets `heart` watch every actor, TOKENIZERs with the patience that a long text needs, CAF's clock and the receiving threads
  /// of WORKER LINK. The heart must go before this does.
  void watch_by(Heart& heart);

  /// Ends the open requests with an error.
  void abandon();

  /// False when an actor that cannot be replaced has died; why() says which.
  bool alive() const { return !root_down_; }
  std::string why() const;

 private:
  /// An actor that is watched, which may be replaced by another one.
  class Watched {
   public:
    explicit Watched(caf::actor actor) : actor_(std::move(actor)) {}
    void replace(caf::actor actor) {
      const std::lock_guard lock(mutex_);
      actor_ = std::move(actor);
    }
    caf::actor get() const {
      const std::lock_guard lock(mutex_);
      return actor_;
    }

   private:
    mutable std::mutex mutex_;
    caf::actor actor_;  // guarded by mutex_
  };
  struct WatchedPart {
    HeartPart part;
    std::shared_ptr<Watched> actor;
  };

  void spawn(CastSetup setup);
  std::shared_ptr<Watched> watch(const std::string& name, caf::actor actor, Duration patience);

  struct SystemConfig : caf::actor_system_config {
    SystemConfig();
  };
  // What the end of the ROOT is told to outlives the actor system; the handles do not.
  std::shared_ptr<std::atomic<bool>> drained_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> root_down_{false};
  mutable std::mutex mutex_;
  std::string root_error_;  // guarded by mutex_
  SystemConfig config_;
  caf::actor_system system_{config_};
  root_actor root_;
  gateway_actor gateway_;
  metrics_actor metrics_;
  std::vector<WatchedPart> watched_;
  std::vector<std::shared_ptr<Pulse>> receiver_pulses_;  // by rank
  std::shared_ptr<const FormPulses> form_pulses_;        // null: there is no GRAMMAR
  std::vector<Arrow> arrows_;
};

/// The arrows, and the rows of the table that have some, as JSON: {"actors":[{"name","on_down","thread","bound","when_full"}],"arrows":[{"from","to"}]}.
std::string topology_json(const std::vector<Arrow>& arrows);

/// The table, and the arrows as a Mermaid graph: docs/topology.md.
std::string topology_markdown(const std::vector<Arrow>& arrows);

}  // namespace troupe
