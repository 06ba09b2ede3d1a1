#include "actors/link/front_link_actor.h"

#include <pthread.h>

#include "actors/front/request_traces.h"
#include "actors/link/message_codec.h"
#include "actors/link/version_conflict.h"
#include "actors/record_bytes.h"
#include "base/clock.h"

namespace troupe {
namespace {

using FrontLinkSelf = front_link_actor::stateful_pointer<FrontLinkState>;

/// Longer than a request may take: GRAMMAR answers when the form is compiled or the request is cancelled.
constexpr std::chrono::minutes kFormPatience{24 * 60};

/// How soon a front's last sequences are looked at again: they end with the steps that run.
constexpr std::chrono::milliseconds kSettling{2};

/// As if the front had ended: its relay ends the connection.
void give_up(Link& link) {
  ipc::LinkEnd& end = link.end();
  if (end.LinkMonitor::epoch() == end.epoch()) end.reaped(ipc::Side::upper);
}

/// Runs in the receiving thread.
class FrontReceiver {
 public:
  FrontReceiver(front_link_actor actor, const FrontLinkParts& parts)
      : actor_(std::move(actor)), parts_(parts) {}

  void operator()(const std::stop_token& stop) {
    do {
      parts_.link->receive(
          stop, *parts_.receiver_pulse,
          {[this](const Arrival& arrival) { take(arrival); }, [this](std::uint32_t epoch) { lost(epoch); },
           [this](const std::string& why) { broken(why); }});
    } while (parts_.is_remote && !stop.stop_requested());
  }

 private:
  void take(const Arrival& arrival) {
    switch (arrival.type) {
      case MessageType::greeting: return greeting(arrival);
      case MessageType::submit: return submit(arrival);
      case MessageType::cancel: return cancel(arrival);
      case MessageType::expect_blocks: return expect(arrival);
      case MessageType::forget_blocks: return forget(arrival);
      case MessageType::steps_taken: return steps_taken(arrival.tag);
      case MessageType::compile:
      case MessageType::reset_cache:
      case MessageType::ask_status:
      case MessageType::probe:
      case MessageType::cancel_compile:
      case MessageType::release_grammar:
        caf::anon_send(actor_, LinkMessage{static_cast<std::uint32_t>(arrival.type), arrival.tag,
                                           arrival.epoch, to_bytes(arrival.bytes)});
        return;
      default:
        broken("a message of type " + std::to_string(static_cast<std::uint32_t>(arrival.type)) +
               " came from the front");
    }
  }

  void greeting(const Arrival& arrival) {
    Greeting greeting;
    if (!decode(arrival.bytes, greeting)) return unreadable(arrival);
    const std::string conflict =
        version_conflict({"the front", greeting.build}, greeting.version, {"the engine", parts_.build});
    if (!conflict.empty()) return broken(conflict);
    parts_.link->greeted(arrival.epoch);
    caf::anon_send(actor_,
                   LinkMessage{static_cast<std::uint32_t>(arrival.type), arrival.tag, arrival.epoch, {}});
  }

  void submit(const Arrival& arrival) {
    FrontSubmit message{parts_.front, {}};
    if (!decode(arrival.bytes, message.submit)) return unreadable(arrival);
    caf::anon_send(parts_.scheduler, std::move(message));
  }

  void cancel(const Arrival& arrival) {
    Cancel message;
    if (!decode(arrival.bytes, message)) return unreadable(arrival);
    caf::anon_send(parts_.scheduler, std::move(message));
  }

  void expect(const Arrival& arrival) {
    FrontExpects message{parts_.front, {}};
    if (!decode(arrival.bytes, message.expected)) return unreadable(arrival);
    caf::anon_send(parts_.cache, std::move(message));
  }

  void forget(const Arrival& arrival) {
    ForgetBlocks message;
    if (!decode(arrival.bytes, message)) return unreadable(arrival);
    caf::anon_send(parts_.cache, std::move(message));
  }

  void steps_taken(std::uint64_t steps) {
    parts_.link->acknowledged(static_cast<std::int64_t>(steps));
    if (!parts_.link->behind()) caf::anon_send(parts_.scheduler, FrontReady{parts_.front});
  }

  void lost(std::uint32_t epoch) {
    parts_.log.warning("front_lost", {kv("front", parts_.front), kv("epoch", epoch)});
    caf::anon_send(parts_.scheduler, FrontLost{parts_.front});
    caf::anon_send(parts_.cache, FrontLost{parts_.front});
    caf::anon_send(actor_, LinkEpoch{epoch});
  }

  void unreadable(const Arrival& arrival) {
    broken("a message of type " + std::to_string(static_cast<std::uint32_t>(arrival.type)) +
           " from the front cannot be read");
  }

  void broken(const std::string& why) {
    parts_.log.error("link_broken", {kv("front", parts_.front), kv("why", why)});
    if (!parts_.is_remote) return caf::anon_send(actor_, LinkBroken{why});
    give_up(*parts_.link);
  }

  front_link_actor actor_;
  const FrontLinkParts parts_;
};

template <class Answer>
void answer(FrontLinkSelf self, const LinkMessage& question, const Answer& answer) {
  self->state.parts.link->send(MessageType::answer, question.tag, encoded_view(answer), question.epoch);
}

template <class Message>
std::optional<Message> read(FrontLinkSelf self, const LinkMessage& message) {
  Message out;
  if (decode(std::as_bytes(std::span(message.bytes)), out)) return out;
  if (self->state.parts.is_remote) {
    give_up(*self->state.parts.link);
  } else {
    self->quit(caf::make_error(caf::sec::runtime_error, "a question of the front cannot be read"));
  }
  return std::nullopt;
}

/// What the front has to know of the engine: it is new, or the front is.
void welcome(FrontLinkSelf self) {
  const FrontLinkState& state = self->state;
  Link& link = *state.parts.link;
  link.send(MessageType::welcome, 0,
            encoded_view(Welcome{wire::kMessagesVersion, state.parts.build, state.parts.topology()}));
  if (state.up) link.send(MessageType::link_up, 0, encoded_view(*state.up));
}

/// Once what the front before it had, or it had itself in another epoch, has ended.
void greeted(FrontLinkSelf self, const LinkMessage& greeting) {
  self->request(self->state.parts.scheduler, kTurnPatience, FrontSettled{self->state.parts.front})
      .then(
          [=](bool settled) {
            if (!settled) return self->delayed_send(self, kSettling, greeting);
            if (greeting.epoch != self->state.parts.link->epoch()) return;
            self->state.greeted = true;
            if (self->state.root) welcome(self);
          },
          [=](const caf::error&) { self->delayed_send(self, kSettling, greeting); });
}

void compile(FrontLinkSelf self, const LinkMessage& question) {
  auto job = read<Compile>(self, question);
  if (!job) return;
  if (!self->state.parts.grammar) {
    return answer(self, question,
                  Compiled{{Code::unsupported, job->form.param + " is not offered by this server",
                            job->form.param, "unsupported_parameter"},
                           0});
  }
  const std::pair exchange(job->io, job->exchange);
  self->state.compiling.insert(exchange);
  auto pending = self->request(self->state.parts.grammar, kFormPatience, *std::move(job));
  pending.then(
      [=, end_deadline = deadline_end(self, pending)](const Compiled& compiled) {
        end_deadline();
        FrontLinkState& state = self->state;
        state.compiling.erase(exchange);
        if (question.epoch != state.parts.link->epoch()) {  // of a front that is gone
          if (compiled.grammar != 0) self->send(state.parts.grammar, ReleaseGrammar{compiled.grammar});
          return;
        }
        if (compiled.grammar != 0) state.grammars.insert(compiled.grammar);
        answer(self, question, compiled);
      },
      [=](const caf::error&) {
        answer(self, question, Compiled{failure(Code::internal, "the form could not be compiled"), 0});
      });
}

void release(FrontLinkSelf self, const LinkMessage& message) {
  const auto wish = read<ReleaseGrammar>(self, message);
  if (!wish || !self->state.parts.grammar) return;
  self->state.grammars.erase(wish->grammar);
  self->send(self->state.parts.grammar, *wish);
}

void cancel_compile(FrontLinkSelf self, const LinkMessage& message) {
  const auto wish = read<CancelCompile>(self, message);
  if (wish && self->state.parts.grammar) self->send(self->state.parts.grammar, *wish);
}

void reset_cache(FrontLinkSelf self, const LinkMessage& question) {
  self->request(self->state.parts.cache, kTurnPatience, ResetPrefixCache{})
      .then([=](std::int32_t blocks) { answer(self, question, blocks); }, [](const caf::error&) {});
}

void status(FrontLinkSelf self, const LinkMessage& question) {
  self->request(self->state.parts.scheduler, kTurnPatience, caf::get_atom::value)
      .then(
          [=](const SchedulerStatus& scheduler) {
            self->request(self->state.parts.cache, kTurnPatience, caf::get_atom::value)
                .then(
                    [=](const CacheStatus& cache) {
                      EngineStatus status;
                      status.scheduler = scheduler;
                      status.cache = cache;
                      answer(self, question, status);
                    },
                    [](const caf::error&) {});
          },
          [](const caf::error&) {});
}

void probe(FrontLinkSelf self, const LinkMessage& question) {
  self->request(self->state.root, kTurnPatience, ProbeAll{})
      .then([=](const ActorReports& reports) { answer(self, question, reports); }, [](const caf::error&) {});
}

void take(FrontLinkSelf self, const LinkMessage& message) {
  if (message.epoch != self->state.parts.link->epoch()) return;  // of a front that is gone
  switch (static_cast<MessageType>(message.type)) {
    case MessageType::greeting: return greeted(self, message);
    case MessageType::compile: return compile(self, message);
    case MessageType::release_grammar: return release(self, message);
    case MessageType::cancel_compile: return cancel_compile(self, message);
    case MessageType::reset_cache: return reset_cache(self, message);
    case MessageType::ask_status: return status(self, message);
    case MessageType::probe: return probe(self, message);
    default: return;
  }
}

/// Nobody releases or cancels what the front has asked for.
void forget_front(FrontLinkSelf self) {
  FrontLinkState& state = self->state;
  for (const std::uint64_t grammar : std::exchange(state.grammars, {}))
    self->send(state.parts.grammar, ReleaseGrammar{grammar});
  for (const auto& [io, exchange] : state.compiling)
    self->send(state.parts.grammar, CancelCompile{io, exchange});
}

}  // namespace

void FrontLinkPort::tokens(std::uint32_t host, const StepTokens& tokens) {
  link_->count_step();
  link_->send(MessageType::step_tokens, host, encoded_view(tokens));
}

void FrontLinkPort::refused(std::uint32_t host, const Refused& refused) {
  link_->send(MessageType::refused, host, encoded_view(refused));
}

void FrontLinkPort::stats(const StepStats& stats) {
  link_->send(MessageType::step_stats, 0, encoded_view(stats));
}

void send_silent(Link& link, const SilentPart& silent) {
  link.send(MessageType::silent, 0, encoded_view(silent));
}

void TraceForwarder::event(std::string_view actor, std::string_view event, std::span<const LogField> fields) {
  if (fields.empty() || fields[0].key != "req") return;
  link_->send(MessageType::trace, 0,
              encoded_view(TracedEvent{std::string(actor), std::string(event), std::string(fields[0].text),
                                       trace_details(fields.subspan(1)), now_ns()}));
}

front_link_actor::behavior_type front_link_behavior(FrontLinkSelf self, FrontLinkParts parts) {
  answer_probes(self);
  self->state.parts = std::move(parts);
  self->state.receiver = std::jthread(FrontReceiver(self, self->state.parts));
  ::pthread_setname_np(self->state.receiver.native_handle(), "front_link");
  return {
      answer_beat,
      [self](const Supervised& by) {
        self->state.root = by.root;
        if (self->state.greeted) welcome(self);
      },
      [self](const LinkUp& up) {
        self->state.up = up;
        *self->state.parts.ready = true;
        self->state.parts.link->send(MessageType::link_up, 0, encoded_view(up));
      },
      [self](const LinkDown& down) {
        self->state.up.reset();
        *self->state.parts.ready = false;
        self->state.parts.link->send(MessageType::link_down, 0, encoded_view(down));
      },
      [self](const LinkMessage& message) { take(self, message); },
      [self](const LinkEpoch&) { forget_front(self); },
      [self](const LinkBroken& broken) { self->quit(caf::make_error(caf::sec::runtime_error, broken.why)); },
  };
}

}  // namespace troupe
