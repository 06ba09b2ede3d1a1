#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actors/link/link.h"
#include "actors/protocol.h"
#include "actors/session/engine_router.h"
#include "actors/session/engine_side.h"
#include "base/log.h"

namespace troupe {

/// The hot half of the front's end: what SESSION HOSTs call straight, without an actor between them and the
/// ring.
class EngineLinkSide final : public EngineSide {
 public:
  explicit EngineLinkSide(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  void submit(Submit&& request, std::uint32_t epoch) override;
  void cancel(Cancel&& request, std::uint32_t epoch) override;
  void expect(ExpectBlocks&& prompt, std::uint32_t epoch) override;
  void forget(ForgetBlocks&& prompts, std::uint32_t epoch) override;
  void took_step() override { link_->took_step(); }

 private:
  const std::shared_ptr<Link> link_;
};

struct EngineLinkParts {
  std::shared_ptr<Link> link;
  std::uint32_t engine = 0;  ///< its index
  std::string build;         ///< of this program
  Log log;
  std::shared_ptr<std::atomic<std::uint64_t>> progress;  ///< counts generated tokens; may be null
  std::function<void(const TracedEvent&)> traced;        ///< thread safe; may be empty, as the next two
  std::function<void(const SilentPart&)> silent;
  std::function<void(const std::string& topology)> welcomed;
  std::shared_ptr<EngineRouter> router;  ///< hears whether the engine can serve; may be null
  bool is_peer = false;  ///< the engine is another instance's: that one counts its steps and shows its actors
  bool is_remote =
      false;  ///< the engine is on another machine: what it does wrong is no fault of this server
  std::shared_ptr<Pulse> receiver_pulse =
      std::make_shared<Pulse>();  ///< beaten by the receiving thread, at least five times a second
};

struct EngineLinkState {
  static inline const char* name = "engine_link";
  /// A question that the engine has not answered: what its answer is given to, or an error when the engine is
  /// gone.
  struct Question {
    std::uint32_t epoch = 0;                                   ///< in which it was asked
    std::function<bool(std::span<const std::byte>)> answered;  ///< false: the bytes are no answer to it
    std::function<void(const std::string&)> lost;
  };
  EngineLinkParts parts;
  FrontActors front;
  std::map<std::uint64_t, Question> questions;  ///< by tag
  std::uint64_t next_tag = 1;
  std::jthread receiver;  ///< the one thread that waits on the rings; ends with the actor
};

/// ENGINE LINK: the front's end of the link to an engine. Tokens, refusals and the engine's state go from the
/// receiving thread straight to those that they are for; the actor asks the engine's actors what is answered.
/// A corrupt ring, or an engine of another build, ends the actor, and with it the front; if the engine is
/// another instance's or on another machine, the front goes on without it until its next process or
/// connection.
engine_link_actor::behavior_type engine_link_behavior(
    engine_link_actor::stateful_pointer<EngineLinkState> self, EngineLinkParts parts);

}  // namespace troupe
