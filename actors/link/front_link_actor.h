#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "actors/link/front_port.h"
#include "actors/link/link.h"
#include "actors/protocol.h"
#include "base/log.h"

namespace troupe {

/// SCHEDULER's half of the engine's end.
class FrontLinkPort final : public FrontPort {
 public:
  explicit FrontLinkPort(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  void tokens(std::uint32_t host, const StepTokens& tokens) override;
  void refused(std::uint32_t host, const Refused& refused) override;
  void stats(const StepStats& stats) override;
  bool behind() const override { return link_->behind(); }

 private:
  const std::shared_ptr<Link> link_;
};

/// Sends the front what actors log of requests.
class TraceForwarder final : public LogObserver {
 public:
  explicit TraceForwarder(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  void event(std::string_view actor, std::string_view event, std::span<const LogField> fields) override;

 private:
  const std::shared_ptr<Link> link_;
};

/// Tells the front which part stands still, without an actor: it may be the one that does.
void send_silent(Link& link, const SilentPart& silent);

struct FrontLinkParts {
  std::shared_ptr<Link> link;
  std::uint32_t front = 0;  ///< its index
  bool is_remote = false;   ///< it is on another machine: what it does wrong is no fault of this engine
  std::string build;        ///< of this program
  std::function<std::string()> topology;  ///< topology_json() of the engine's actors, once all have started
  scheduler_actor scheduler;
  cache_actor cache;
  grammar_actor grammar;                     ///< null: no answer is held to a form
  std::shared_ptr<std::atomic<bool>> ready;  ///< a worker is attached
  Log log;
  std::shared_ptr<Pulse> receiver_pulse =
      std::make_shared<Pulse>();  ///< beaten by the receiving thread, at least five times a second
};

struct FrontLinkState {
  static inline const char* name = "front_link";
  FrontLinkParts parts;
  root_actor root;                   ///< null: some actor has not started yet
  bool greeted = false;              ///< by a front
  std::optional<LinkUp> up;          ///< of the worker that is attached
  std::set<std::uint64_t> grammars;  ///< that the front has not released
  std::set<std::pair<std::uint32_t, std::uint64_t>>
      compiling;          ///< I/O threads and exchanges whose forms GRAMMAR has not answered
  std::jthread receiver;  ///< the one thread that waits on the rings; ends with the actor
};

/// FRONT LINK: the engine's end of the link to one front. Submissions and cancellations go from the receiving
/// thread straight to SCHEDULER; the actor asks GRAMMAR, CACHE MANAGER and ROOT what the front wants to know,
/// and gives back what a front that is gone has left. A corrupt ring, or a front of another build, ends the
/// actor, and with it the engine; if the front is on another machine, it is given up as if it had ended.
front_link_actor::behavior_type front_link_behavior(front_link_actor::stateful_pointer<FrontLinkState> self,
                                                    FrontLinkParts parts);

}  // namespace troupe
