#pragma once
// The actors of the front and of an engine: which there are, in which order they start, what happens when one
// dies, what bounds their mailboxes. topology.cpp is the only file that spawns actors.
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/engine/watchdog.h"
#include "actors/gateway/gateway_actor.h"
#include "actors/link/engine_link_actor.h"
#include "actors/link/front_link_actor.h"
#include "actors/media/media_actor.h"
#include "actors/metrics/registry.h"
#include "actors/protocol.h"
#include "actors/root_actor.h"
#include "actors/session/session_host_actor.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "config/options.h"
#include "ipc/block_names.h"
#include "ipc/link.h"
#include "text/tokenizer/vocabulary_image.h"

namespace troupe {

enum class ActorProcess : std::uint8_t { front, engine };

constexpr const char* to_string(ActorProcess process) {
  return process == ActorProcess::front ? "front" : "engine";
}

/// What one of several is called: the first, index 0, has no number.
std::string numbered(const std::string& name, std::int64_t index);

/// One row of the table of actors. CAF's mailboxes are unbounded: each sender limits what it has out, as the
/// row says, with what happens at the limit.
struct Role {
  const char* name;
  ActorProcess process;
  OnDown on_down;
  const char* thread;  ///< pool, or one of its own
  const char* bound;   ///< who limits its mailbox
  const char* when_full;
  const char* why;  ///< the reason for on_down, in one sentence
};

/// In start order of each process.
inline constexpr Role kRoles[] = {
    {"metrics", ActorProcess::front, OnDown::escalate, "pool", "one message a step, a few of a request",
     "none", "Every part reports to it by handle, and it alone has the counts."},
    {"engine_link", ActorProcess::front, OnDown::escalate, "pool, and one receiving thread",
     "one question of each session", "none", "Its end means that the ring or the engine cannot be trusted."},
    {"tokenizer", ActorProcess::front, OnDown::escalate, "pool, and one receiving thread",
     "two prompts of each SESSION HOST, and two long ones of clients or of batches",
     "SESSION HOST keeps the next ones, short ones first",
     "It alone knows which texts its process has not answered."},
    {"media", ActorProcess::front, OnDown::escalate, "pool, and threads that decode",
     "two questions of each session; --media-memory for what they are about",
     "requests wait in order, 256 at most and 30 s each, for room for their files and again for their "
     "patches; "
     "429",
     "It alone knows which images are in memory, and whose."},
    {"session", ActorProcess::front, OnDown::escalate, "pool",
     "GATEWAY's credits; the engine's steps by the link's credit; output by the connection's buffer",
     "429; the client is cut off", "Its sessions hold the text that clients have already seen."},
    {"gateway", ActorProcess::front, OnDown::escalate, "pool", "--max-concurrency", "429",
     "Its count of open requests would be lost, and with it the bound on them."},
    {"worker_link", ActorProcess::engine, OnDown::escalate, "pool, and one receiving thread",
     "max_steps_in_flight plans and their masks", "SCHEDULER waits",
     "Its end means that the ring or the worker cannot be trusted."},
    {"rank_group", ActorProcess::engine, OnDown::escalate, "pool",
     "max_steps_in_flight plans and their masks", "SCHEDULER waits",
     "It alone knows which ranks have answered a step."},
    {"cache", ActorProcess::engine, OnDown::escalate, "pool", "one CacheAsks a step", "SCHEDULER waits",
     "Its block tables are the truth about the worker's memory."},
    {"grammar", ActorProcess::engine, OnDown::escalate, "own, and helpers",
     "GATEWAY's credits; one GrammarStep a step", "SCHEDULER waits",
     "It alone knows how far each answer is in its form, and steps wait for its masks."},
    {"scheduler", ActorProcess::engine, OnDown::escalate, "pool",
     "GATEWAY's credits; --max-queued-requests, --max-queued-tokens", "429",
     "It alone knows which plan is in flight."},
    {"front_link", ActorProcess::engine, OnDown::escalate, "pool, and one receiving thread",
     "one question of each session", "none", "Its end means that the ring or the front cannot be trusted."},
};

/// What both processes' actors are started with.
struct SystemSetup {
  config::Options options;  ///< resolved
  std::function<Log(const std::string& actor)> log;
  std::string build;  ///< of the program
};

struct FrontSetup : SystemSetup {
  std::vector<std::shared_ptr<Link>> engines;  ///< the front's ends of the links to engines, by index
  /// So many of them belong to this server; those behind them are prefill instances, which come and go, and
  /// whose counts are their own front's.
  std::size_t own_engines = std::numeric_limits<std::size_t>::max();
  std::size_t first_remote = SIZE_MAX;  ///< engines from this index on are on other machines
  /// Likewise: the names of their KV blocks, to read; empty: they are not known.
  std::vector<std::shared_ptr<const ipc::BlockNames>> block_names{};
  std::vector<std::shared_ptr<Link>> texts;  ///< likewise, to the text processes, at least one
  std::function<void(std::uint32_t index, const std::string& why)>
      distrusted;  ///< a text process must be replaced; thread safe; may be empty
  std::shared_ptr<const SessionContext> sessions;
  std::optional<MediaParts> media;  ///< without its log; none: the model does not see
  std::uint32_t io_threads = 1;
  metrics::Constants constants;
  std::shared_ptr<HealthCell> health;
  Deliver deliver;
  std::shared_ptr<std::atomic<std::uint64_t>> progress;  ///< counts generated tokens; may be null
  std::string config_json;                               ///< what /config-info answers
  std::function<void(const TracedEvent&)>
      traced;  ///< what the engine's actors log of requests; thread safe; may be empty
  std::function<void(std::uint32_t engine, const SilentPart&)>
      silent;                                                 ///< which of its parts stand still; likewise
  std::function<void(const std::string& topology)> welcomed;  ///< what actors it has; likewise
};

struct EngineSetup : SystemSetup {
  std::vector<std::shared_ptr<ipc::UpperEnd>> links;  ///< to the workers, by rank, at least one
  std::vector<std::shared_ptr<Link>> fronts;          ///< the engine's ends of the links to fronts
  bool remote_fronts = false;                         ///< they are on other machines
  std::shared_ptr<ipc::BlockNames> block_names;       ///< null: names of KV blocks end with this engine
  /// By index: those of other instances whose KV memory the workers are given.
  std::vector<std::shared_ptr<const ipc::BlockNames>> peer_names{};
  std::uint64_t spec_hash = 0;
  std::shared_ptr<const VocabularyImage> texts;  ///< of GRAMMAR; null: there is none
  std::vector<TokenId> eos_ids;                  ///< likewise
  int vocabulary = 0;                            ///< of the model
  std::string executable = "/proc/self/exe";     ///< of GRAMMAR's processes for forms
  std::shared_ptr<std::atomic<bool>> ready =
      std::make_shared<std::atomic<bool>>(false);  ///< a worker is attached
};

/// `from` holds a handle of `to` and sends to it.
struct Arrow {
  std::string from, to;
  auto operator<=>(const Arrow&) const = default;
};

/// An actor system with a ROOT over its actors.
class SupervisedActors {
 public:
  ~SupervisedActors();  ///< ends the actors in reverse order and waits for them

  SupervisedActors(const SupervisedActors&) = delete;
  SupervisedActors& operator=(const SupervisedActors&) = delete;

  /// Who was given whose handle, sorted.
  const std::vector<Arrow>& arrows() const { return arrows_; }

  /// A report of every actor; not ok when ROOT does not answer within the time given.
  Result<std::vector<ActorReport>> actors(Duration patience);

  /// Lets `watchdog` watch every actor, CAF's clock and the threads that the actors have of their own, each
  /// with the patience that its work needs. The watchdog must go before this does.
  void watch_by(Watchdog& watchdog);

  /// False when an actor that cannot be replaced has died; why() says which.
  bool alive() const { return !root_down_; }
  std::string why() const;

 protected:
  SupervisedActors() = default;

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

  /// `handle` becomes the next child of the ROOT, by its row of the table.
  template <class Handle>
  RootChild& add(const char* name, const Handle& handle);
  /// `handle`, which is given to the actor `to_whom`: an arrow.
  template <class Handle>
  const Handle& introduce(const char* to_whom, const Handle& handle);
  std::shared_ptr<Watched> watch(const std::string& name, caf::actor actor, Duration patience);
  /// A thread that beats unasked.
  void watch_thread(std::string name, std::function<std::uint64_t()> beats, Duration patience = {}) {
    threads_.push_back({{std::move(name), true, patience}, std::move(beats)});
  }
  /// Starts the ROOT over what was added. `failed`, which may be empty, is called when it ends without having
  /// been asked to.
  void supervise(const Log& log, std::function<void()> failed = {});

  const root_actor& root() const { return root_; }
  caf::actor_system& system() { return system_; }

 private:
  struct WatchedPart {
    WatchdogPart part;
    std::shared_ptr<Watched> actor;
  };
  struct WatchedThread {
    WatchdogPart part;
    std::function<std::uint64_t()> beats;
  };
  struct SystemConfig : caf::actor_system_config {
    SystemConfig();
  };

  std::atomic<bool> root_down_{false};
  mutable std::mutex mutex_;
  std::string root_error_;           // guarded by mutex_
  std::vector<RootChild> children_;  // until there is a ROOT
  std::vector<Arrow> arrows_;
  SystemConfig config_;
  caf::actor_system system_{config_};
  root_actor root_;
  std::vector<WatchedPart> watched_;
  std::vector<WatchedThread> threads_;
};

/// The actors of the front.
class FrontSystem final : public SupervisedActors {
 public:
  /// Starts every actor in table order, and the ROOT over them.
  explicit FrontSystem(FrontSetup setup);

  const gateway_actor& gateway() const { return gateway_; }
  const metrics_actor& metrics() const { return metrics_; }
  /// Tells METRICS which processes the supervisor has.
  void report(ProcessReports processes) { caf::anon_send(metrics_, std::move(processes)); }

  /// The state of every part, once it is known, the engine's among it while there is one; nothing when
  /// GATEWAY does not answer within the time given.
  std::future<std::optional<EngineStatus>> ask_status(Duration patience);

  /// A report of every actor of the engine; not ok when it does not answer within the time given.
  Result<std::vector<ActorReport>> engine_actors(Duration patience);

  /// Refuses new requests from now on; open ones go on. drained() becomes true when none is open.
  void drain();
  bool drained() const { return *drained_; }

  /// Ends the open requests with an error.
  void abandon();

 private:
  // Told by an actor that may outlive this object.
  std::shared_ptr<std::atomic<bool>> drained_ = std::make_shared<std::atomic<bool>>(false);
  gateway_actor gateway_;
  metrics_actor metrics_;
  media_actor media_;                       // null: the model does not see
  std::size_t own_engines_ = 0;             // those behind them are prefill instances
  std::vector<engine_link_actor> engines_;  // by index
};

/// The actors of an engine.
class EngineSystem final : public SupervisedActors {
 public:
  explicit EngineSystem(EngineSetup setup);

 private:
  std::vector<front_link_actor> fronts_;
};

/// The arrows, and the rows of the table that have some, as JSON:
/// {"actors":[{"name","process","on_down","thread","bound","when_full"}],"arrows":[{"from","to"}]}.
std::string topology_json(const std::vector<Arrow>& arrows);

/// The table, and the arrows of both processes as a Mermaid graph: docs/topology.md.
std::string topology_markdown(const std::vector<Arrow>& arrows);

}  // namespace troupe
