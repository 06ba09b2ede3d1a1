#include "actors/session/session_host_actor.h"

#include "base/clock.h"

namespace troupe {
namespace {

using Self = session_host_actor::stateful_pointer<SessionHostState>;

/// A TOKENIZER that dies over a request answers nothing: the request is given up after this.
constexpr auto kTokenizerPatience = std::chrono::seconds(60);

/// Every handler ends here: what the sessions want is sent, in one batch per receiver.
void act(Self self, Effects& effects) {
  auto& state = self->state;
  if (!effects.cancel.empty()) self->send(state.parts.scheduler, Cancel{std::move(effects.cancel)});
  if (!effects.outputs.empty()) state.parts.deliver(state.parts.io, std::move(effects.outputs));
  for (const FinishedRequest& done : effects.finished) {
    state.parts.log.info("finished", {kv("req", done.request_id), kv("ok", done.stats.ok),
                                      kv("prompt_tokens", done.stats.prompt_tokens),
                                      kv("output_tokens", done.stats.output_tokens),
                                      kv("ttft_ms", done.stats.ttft_s * 1e3), kv("ms", done.stats.e2e_s * 1e3)});
    self->send(state.parts.metrics, done.stats);
  }
  for (const std::uint64_t exchange : state.book->take_closed()) {
    const auto credit = state.credits.find(exchange);
    if (credit == state.credits.end()) continue;
    credit->second.deliver(Closed{exchange});
    state.credits.erase(credit);
  }
}

void fail(Self self, std::uint64_t exchange, const Status& status) {
  Effects effects;
  self->state.book->fail(exchange, status, now_ns(), effects);
  act(self, effects);
}

void submit(Self self, std::uint64_t exchange, Submit sequences) {
  self->request(self->state.parts.scheduler, caf::infinite, std::move(sequences))
      .then(
          [=](const Status& status) {
            if (!status.ok()) fail(self, exchange, status);
          },
          [=](const caf::error&) { fail(self, exchange, failure(Code::unavailable, "the scheduler is being restarted")); });
}

void encoded(Self self, std::uint64_t exchange, Encoded& result) {
  Effects effects;
  SessionBook& book = *self->state.book;
  std::string request_id = book.find(exchange) == nullptr ? "" : book.find(exchange)->ask().request_id;
  Submit sequences = book.encoded(exchange, std::move(result), now_ns(), effects);
  sequences.request_id = std::move(request_id);
  act(self, effects);
  if (!sequences.sequences.empty()) submit(self, exchange, std::move(sequences));
}

caf::typed_response_promise<Closed> open(Self self, Ask& ask) {
  auto& state = self->state;
  const std::uint64_t exchange = ask.exchange;
  auto credit = self->make_response_promise<Closed>();
  state.credits.emplace(exchange, credit);
  state.parts.log.debug("opened", {kv("req", ask.request_id)});
  Encode job{ask.request_id, ask.api, ask.source};
  state.book->open(std::move(ask));
  const auto& tokenizer = state.parts.tokenizers[state.next_tokenizer++ % state.parts.tokenizers.size()];
  self->request(tokenizer, kTokenizerPatience, std::move(job))
      .then([=](Encoded& result) { encoded(self, exchange, result); },
            [=](const caf::error&) { fail(self, exchange, failure(Code::internal, "the tokenizer failed on this request")); });
  return credit;
}

}  // namespace

session_host_actor::behavior_type session_host_behavior(Self self, SessionHostParts parts) {
  self->state.parts = std::move(parts);
  self->state.book = std::make_unique<SessionBook>(self->state.parts.context, KeySource());
  return {
      [self](Ask& ask) { return open(self, ask); },
      [self](const Withdraw& gone) {
        Effects effects;
        self->state.book->withdraw(gone.exchange, now_ns(), effects);
        act(self, effects);
      },
      [self](const StepTokens& step) {
        Effects effects;
        self->state.book->take(step, now_ns(), effects);
        act(self, effects);
      },
      [self](const TokenizerUp& up) { self->state.parts.tokenizers.at(up.index) = up.tokenizer; },
  };
}

}  // namespace troupe
