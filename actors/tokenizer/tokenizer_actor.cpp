#include "actors/tokenizer/tokenizer_actor.h"

#include <pthread.h>

#include <utility>

#include "actors/link/message_codec.h"
#include "actors/link/version_conflict.h"
#include "base/clock.h"

namespace troupe {
namespace {

using TokenizerSelf = tokenizer_actor::stateful_pointer<TokenizerState>;

/// Runs in the receiving thread. A process that breaks the rules is not listened to until another has taken
/// its place.
class TextReceiver {
 public:
  TextReceiver(tokenizer_actor actor, gateway_actor gateway, const TokenizerParts& parts)
      : actor_(std::move(actor)), gateway_(std::move(gateway)), parts_(parts) {}

  void operator()(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      parts_.link->receive(
          stop, *parts_.receiver_pulse,
          {[this](const Arrival& arrival) { take(arrival); }, [this](std::uint32_t epoch) { lost(epoch); },
           [this](const std::string& why) { distrust(why); }});
    }
  }

 private:
  void take(const Arrival& arrival) {
    if (distrusted_) return;
    switch (arrival.type) {
      case MessageType::greeting: return greeting(arrival);
      case MessageType::encoded: return encoded(arrival);
      default:
        distrust("a message of type " + std::to_string(static_cast<std::uint32_t>(arrival.type)) +
                 " came from it");
    }
  }

  void greeting(const Arrival& arrival) {
    Greeting greeting;
    if (!decode(arrival.bytes, greeting)) return distrust("its greeting cannot be read");
    const std::string conflict =
        version_conflict({"the text process", greeting.build}, greeting.version, {"the front", parts_.build});
    if (!conflict.empty()) return distrust(conflict);
    caf::anon_send(gateway_, TextUp{parts_.index});
  }

  /// The job of an answer that cannot be read stays open: it is asked again when another process has come.
  void encoded(const Arrival& arrival) {
    TextAnswer answer{arrival.tag, {}};
    if (!decode(arrival.bytes, answer.encoded)) return distrust("an answer of it cannot be read");
    caf::anon_send(actor_, std::move(answer));
  }

  void lost(std::uint32_t epoch) {
    distrusted_ = false;
    parts_.log.warning("text_process_lost", {kv("index", parts_.index), kv("epoch", epoch)});
    caf::anon_send(actor_, LinkEpoch{epoch});
  }

  void distrust(const std::string& why) {
    if (std::exchange(distrusted_, true)) return;
    parts_.log.error("text_process_distrusted", {kv("index", parts_.index), kv("why", why)});
    if (parts_.distrusted) parts_.distrusted(why);
  }

  tokenizer_actor actor_;
  gateway_actor gateway_;
  const TokenizerParts parts_;
  bool distrusted_ = false;
};

MessageType type_of(TextLane lane) {
  switch (lane) {
    case TextLane::common: return MessageType::encode;
    case TextLane::long_texts: return MessageType::encode_long;
    case TextLane::background: return MessageType::encode_background;
  }
  return MessageType::encode;
}

void send_due(TokenizerSelf self) {
  TokenizerState& state = self->state;
  for (const std::uint64_t number : state.jobs.due()) {
    const MessageType type = type_of(state.jobs.lane(number));
    state.jobs.sent(number,
                    state.parts.link->send(type, number, std::as_bytes(std::span(state.jobs.bytes(number)))));
  }
}

caf::typed_response_promise<Encoded> take(TokenizerSelf self, const Encode& job) {
  TokenizerState& state = self->state;
  auto promise = self->make_response_promise<Encoded>();
  Bytes bytes;
  encode(job, bytes);
  if (bytes.size() > Link::kMaxMessageBytes) {
    promise.deliver(
        Encoded{failure(Code::too_large, "the request's text is too long to be encoded"), {}, {}, {}, {}});
    return promise;
  }
  const std::uint64_t number = state.jobs.add(std::move(bytes), job.lane);
  state.open.emplace(number, TokenizerState::Open{promise, job.request_id, now_ns()});
  send_due(self);
  return promise;
}

void answer(TokenizerSelf self, std::uint64_t number, Encoded encoded) {
  auto node = self->state.open.extract(number);
  auto& [promise, request_id, since_ns] = node.mapped();
  const Log& log = self->state.parts.log;
  const double ms = static_cast<double>(now_ns() - since_ns) * 1e-6;
  if (encoded.status.ok()) {
    std::size_t tokens = 0;
    for (const auto& prompt : encoded.prompts) tokens += prompt.size();
    log.info("encoded", {kv("req", request_id), kv("prompts", encoded.prompts.size()), kv("tokens", tokens),
                         kv("ms", ms)});
  } else {
    log.info("refused", {kv("req", request_id), kv("why", encoded.status.message), kv("ms", ms)});
  }
  promise.deliver(std::move(encoded));
}

void answered(TokenizerSelf self, TextAnswer& message) {
  if (!self->state.jobs.answered(message.number)) return;
  answer(self, message.number, std::move(message.encoded));
  send_due(self);
}

void lost(TokenizerSelf self, std::uint32_t epoch) {
  TokenizerState& state = self->state;
  for (const std::uint64_t number : state.jobs.lost(epoch)) {
    state.parts.log.error("poison_request", {kv("req", state.open.at(number).request_id)});
    Encoded failed;
    failed.status = failure(Code::internal,
                            "the process that encodes texts has ended twice while it worked on this request");
    failed.status.reason = "poison_request";
    answer(self, number, std::move(failed));
  }
  send_due(self);
}

}  // namespace

tokenizer_actor::behavior_type tokenizer_behavior(TokenizerSelf self, TokenizerParts parts) {
  answer_probes(self);
  self->state.parts = std::move(parts);
  return {
      answer_beat,
      [self](const TextArrivals& to) {
        self->state.receiver = std::jthread(TextReceiver(self, to.gateway, self->state.parts));
        ::pthread_setname_np(self->state.receiver.native_handle(), "text_link");
      },
      [self](const Encode& job) { return take(self, job); },
      [self](TextAnswer& message) { answered(self, message); },
      [self](const LinkEpoch& now) { lost(self, now.epoch); },
  };
}

}  // namespace troupe
