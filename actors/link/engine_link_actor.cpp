#include "actors/link/engine_link_actor.h"

#include <pthread.h>

#include <utility>

#include "actors/link/message_codec.h"
#include "actors/link/version_conflict.h"
#include "actors/record_bytes.h"

namespace troupe {
namespace {

/// How often a broken link to another instance's engine is looked at.
constexpr auto kLookForPeer = std::chrono::milliseconds(20);

using EngineLinkSelf = engine_link_actor::stateful_pointer<EngineLinkState>;

/// Runs in the receiving thread.
class EngineReceiver {
 public:
  EngineReceiver(engine_link_actor actor, const EngineLinkParts& parts, FrontActors front)
      : actor_(std::move(actor)), parts_(parts), front_(std::move(front)) {}

  void operator()(const std::stop_token& stop) {
    greet();
    do {
      parts_.link->receive(
          stop, *parts_.receiver_pulse,
          {[this](const Arrival& arrival) { take(arrival); }, [this](std::uint32_t epoch) { lost(epoch); },
           [this](const std::string& why) { broken(why); }});
    } while (outlives_faults() && outlast(stop));
  }

 private:
  bool outlives_faults() const { return parts_.is_peer || parts_.is_remote; }

  /// Waits until the engine whose link is broken has gone. False: asked to stop.
  bool outlast(const std::stop_token& stop) {
    ipc::LinkEnd& end = parts_.link->end();
    while (!stop.stop_requested() && end.LinkMonitor::epoch() == end.epoch()) {
      parts_.receiver_pulse->beat();
      std::this_thread::sleep_for(kLookForPeer);
    }
    return !stop.stop_requested();
  }

  void greet() {
    parts_.link->send(MessageType::greeting, 0, encoded_view(Greeting{wire::kMessagesVersion, parts_.build}));
  }

  void take(const Arrival& arrival) {
    if (distrusts_) return;
    switch (arrival.type) {
      case MessageType::step_tokens: return tokens(arrival);
      case MessageType::refused: return refused(arrival);
      case MessageType::step_stats: return stats(arrival);
      case MessageType::welcome: return welcome(arrival);
      case MessageType::link_up: return up(arrival);
      case MessageType::link_down: return with<LinkDown>(arrival, [this](const LinkDown&) { serves(false); });
      case MessageType::answer:
        caf::anon_send(actor_, LinkMessage{static_cast<std::uint32_t>(arrival.type), arrival.tag,
                                           arrival.epoch, to_bytes(arrival.bytes)});
        return;
      case MessageType::trace:
        return with<TracedEvent>(arrival, [this](const TracedEvent& event) {
          if (parts_.traced) parts_.traced(event);
        });
      case MessageType::silent:
        return with<SilentPart>(arrival, [this](const SilentPart& silent) {
          if (parts_.silent) parts_.silent(silent);
        });
      default:
        broken("a message of type " + std::to_string(static_cast<std::uint32_t>(arrival.type)) +
               " came from the engine");
    }
  }

  template <class Message, class Use>
  void with(const Arrival& arrival, Use&& use) {
    Message message;
    if (!decode(arrival.bytes, message)) {
      return broken("a message of type " + std::to_string(static_cast<std::uint32_t>(arrival.type)) +
                    " from the engine cannot be read");
    }
    use(message);
  }

  /// To the SESSION HOST that the tag names.
  template <class Message>
  void pass(const Arrival& arrival, Message&& message) {
    if (arrival.tag < front_.hosts.size()) {
      caf::anon_send(front_.hosts[arrival.tag], std::forward<Message>(message));
    }
  }

  void tokens(const Arrival& arrival) {
    with<StepTokens>(arrival, [&](StepTokens& step) {
      step.engine = parts_.engine;
      pass(arrival, std::move(step));
    });
  }

  void refused(const Arrival& arrival) {
    with<Refused>(arrival, [&](Refused& refused) { pass(arrival, std::move(refused)); });
  }

  /// GATEWAY and the router hear it; SESSION HOSTs hear of processes that have come anew or gone.
  void serves(bool on) {
    if (parts_.router != nullptr) parts_.router->serves(parts_.engine, on);
    caf::anon_send(front_.gateway, EngineServes{parts_.engine, on});
  }

  void stats(const Arrival& arrival) {
    with<StepStats>(arrival, [this](StepStats& stats) {
      stats.engine = parts_.engine;
      if (parts_.is_peer) return;
      if (parts_.progress != nullptr) {
        parts_.progress->fetch_add(static_cast<std::uint64_t>(stats.generated_tokens),
                                   std::memory_order_relaxed);
      }
      caf::anon_send(front_.metrics, stats);
    });
  }

  void welcome(const Arrival& arrival) {
    with<Welcome>(arrival, [this](const Welcome& welcome) {
      const std::string conflict =
          version_conflict({"the engine", welcome.build}, welcome.version, {"the front", parts_.build});
      if (!conflict.empty()) return broken(conflict);
      if (parts_.welcomed && !parts_.is_peer) parts_.welcomed(welcome.topology);
    });
  }

  /// GATEWAY last: what it admits must find hosts that know the engine.
  void up(const Arrival& arrival) {
    with<LinkUp>(arrival, [&](const LinkUp&) {
      if (up_in_ != arrival.epoch) {
        for (const auto& host : front_.hosts) caf::anon_send(host, EngineUp{parts_.engine, arrival.epoch});
      }
      up_in_ = arrival.epoch;
      serves(true);
    });
  }

  void lost(std::uint32_t epoch) {
    const std::string why = "the engine was restarted";
    distrusts_ = false;
    parts_.log.warning("engine_lost", {kv("engine", parts_.engine), kv("epoch", epoch)});
    serves(false);
    for (const auto& host : front_.hosts) caf::anon_send(host, EngineDown{parts_.engine, epoch, why});
    if (parts_.silent) parts_.silent({});
    if (!parts_.is_peer)
      caf::anon_send(front_.metrics, StepStats{.engine = parts_.engine});  // nothing runs or waits there
    caf::anon_send(actor_, LinkEpoch{epoch});
    greet();
  }

  void broken(const std::string& why) {
    parts_.log.error("link_broken", {kv("engine", parts_.engine), kv("why", why)});
    if (!outlives_faults()) return caf::anon_send(actor_, LinkBroken{why});
    distrusts_ = true;
    serves(false);
    const std::uint32_t next = up_in_ + 1;
    for (const auto& host : front_.hosts) caf::anon_send(host, EngineDown{parts_.engine, next, why});
    // The relay ends the connection.
    ipc::LinkEnd& end = parts_.link->end();
    if (parts_.is_remote && end.LinkMonitor::epoch() == end.epoch()) end.reaped(ipc::Side::lower);
  }

  engine_link_actor actor_;
  const EngineLinkParts parts_;
  const FrontActors front_;
  std::uint32_t up_in_ = 0;  // the last epoch in which the engine could serve
  bool distrusts_ = false;   // another instance's engine has sent what it should not
};

/// Asks the engine; the answer comes as an Answer.
template <class Answer, class Message>
caf::typed_response_promise<Answer> ask(EngineLinkSelf self, MessageType type, const Message& question) {
  EngineLinkState& state = self->state;
  auto promise = self->template make_response_promise<Answer>();
  if (state.parts.is_remote && state.parts.link->end().heartbeat_ns(ipc::Side::lower) == 0) {
    promise.deliver(caf::make_error(caf::sec::request_receiver_down, "the engine is not there"));
    return promise;
  }
  const std::uint64_t tag = state.next_tag++;
  const std::uint32_t epoch = state.parts.link->send(type, tag, encoded_view(question));
  state.questions.emplace(
      tag, EngineLinkState::Question{epoch,
                                     [promise](std::span<const std::byte> bytes) mutable {
                                       Answer answer{};
                                       if (!decode(bytes, answer)) return false;
                                       promise.deliver(std::move(answer));
                                       return true;
                                     },
                                     [promise](const std::string& why) mutable {
                                       promise.deliver(caf::make_error(caf::sec::request_receiver_down, why));
                                     }});
  return promise;
}

void answered(EngineLinkSelf self, const LinkMessage& message) {
  auto node = self->state.questions.extract(message.tag);
  if (node.empty()) return;  // of an engine that was lost meanwhile
  if (node.mapped().answered(std::as_bytes(std::span(message.bytes)))) return;
  node.mapped().lost("its answer cannot be read");
  if (!self->state.parts.is_remote) {
    self->quit(caf::make_error(caf::sec::runtime_error, "an answer of the engine cannot be read"));
  }
}

/// Questions that were asked in the new epoch already are the next engine's.
void lost(EngineLinkSelf self, std::uint32_t epoch) {
  std::erase_if(self->state.questions, [epoch](auto& entry) {
    if (entry.second.epoch == epoch) return false;
    entry.second.lost("the engine was restarted");
    return true;
  });
}

}  // namespace

void EngineLinkSide::submit(Submit&& request, std::uint32_t epoch) {
  link_->send(MessageType::submit, 0, encoded_view(request), epoch);
}

void EngineLinkSide::cancel(Cancel&& request, std::uint32_t epoch) {
  link_->send(MessageType::cancel, 0, encoded_view(request), epoch);
}

void EngineLinkSide::expect(ExpectBlocks&& prompt, std::uint32_t epoch) {
  link_->send(MessageType::expect_blocks, 0, encoded_view(prompt), epoch);
}

void EngineLinkSide::forget(ForgetBlocks&& prompts, std::uint32_t epoch) {
  link_->send(MessageType::forget_blocks, 0, encoded_view(prompts), epoch);
}

engine_link_actor::behavior_type engine_link_behavior(EngineLinkSelf self, EngineLinkParts parts) {
  answer_probes(self);
  self->state.parts = std::move(parts);
  return {
      answer_beat,
      [self](const FrontActors& front) {
        self->state.receiver = std::jthread(EngineReceiver(self, self->state.parts, front));
        ::pthread_setname_np(self->state.receiver.native_handle(), "engine_link");
      },
      [self](const Compile& job) { return ask<Compiled>(self, MessageType::compile, job); },
      [self](const CancelCompile& cancel) {
        self->state.parts.link->send(MessageType::cancel_compile, 0, encoded_view(cancel));
      },
      [self](const ReleaseGrammar& release) {
        self->state.parts.link->send(MessageType::release_grammar, 0, encoded_view(release));
      },
      [self](const ResetPrefixCache& reset) {
        return ask<std::int32_t>(self, MessageType::reset_cache, reset);
      },
      [self](caf::get_atom) { return ask<EngineStatus>(self, MessageType::ask_status, Probe{}); },
      [self](const ProbeAll& probe) { return ask<ActorReports>(self, MessageType::probe, probe); },
      [self](const LinkMessage& message) { answered(self, message); },
      [self](const LinkEpoch& now) { lost(self, now.epoch); },
      [self](const LinkBroken& broken) { self->quit(caf::make_error(caf::sec::runtime_error, broken.why)); },
  };
}

}  // namespace troupe
