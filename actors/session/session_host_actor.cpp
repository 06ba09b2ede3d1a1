#include "actors/session/session_host_actor.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/contain.h"
#include "http/api/openai_error.h"

namespace troupe {
namespace {

using SessionHostSelf = session_host_actor::stateful_pointer<SessionHostState>;

/// A SESSION HOST with open requests looks at their deadlines at least so often: one timer for all of them,
/// since CAF keeps each until it is over.
constexpr std::int64_t kLookNs = 1'000'000'000;

/// One job in progress and one that waits. No more: clients may leave meanwhile, which frees their admission
/// credits, so nothing else would bound the jobs in a TOKENIZER's mailbox.
constexpr int kJobsPerTokenizer = 2;

/// A request with a longer body gets a lane for long texts. That much is encoded in some 10 ms.
constexpr std::int64_t kLongBytes = 32 << 10;

/// A request waits behind those that came so much later for each byte that it is longer, so that many texts
/// of middling length do not delay short ones; it is some three times as long as encoding a byte takes.
constexpr std::int64_t kNsPerByte = 1000;

/// The time for others between two turns that write an answer.
constexpr auto kPause = std::chrono::milliseconds(1);

/// How often requests that wait to run alone look whether they may.
constexpr auto kRetryAlone = std::chrono::milliseconds(20);

Slice begin_slice(SessionHostSelf self) { return Slice(now_ns() + self->state.parts.slice_ns); }

/// Ends sequences, in one batch for each engine. Those of an engine that is down have ended with it.
void cancel(SessionHostSelf self, const std::vector<CancelledSequence>& sequences) {
  auto& state = self->state;
  std::map<std::uint32_t, Cancel> by_engine;
  for (const CancelledSequence& one : sequences) by_engine[one.engine].keys.push_back(one.key);
  for (auto& [engine, keys] : by_engine) {
    const auto process = state.book->process_of(engine);
    if (process) state.parts.engines[engine]->cancel(std::move(keys), process->epoch);
  }
}

/// Carries out what the sessions want, in one batch per receiver. Every handler ends with it.
void act(SessionHostSelf self, Effects& effects) {
  auto& state = self->state;
  cancel(self, effects.cancel);
  for (auto& [process, prompts] : state.book->take_forgotten()) {
    if (state.book->runs(process))
      state.parts.engines[process.engine]->forget(std::move(prompts), process.epoch);
  }
  for (const std::uint64_t exchange : effects.media) {
    if (state.parts.media) self->send(state.parts.media, ReleaseMedia{state.parts.io, exchange});
  }
  for (const auto& [engine, grammar] : effects.grammars) {
    self->send(state.parts.grammars[engine], ReleaseGrammar{grammar});
  }
  for (const std::uint64_t exchange : effects.unfinished) self->delayed_send(self, kPause, Resume{exchange});
  for (const BegunRequest& begun : effects.begun) {
    state.parts.log.stage("first_token", {kv("req", begun.request_id), kv("queue_ms", begun.queue_s * 1e3),
                                          kv("ttft_ms", begun.ttft_s * 1e3)});
  }
  for (const std::string& request_id : effects.poisonous) {
    state.parts.log.error("poison_request", {kv("req", request_id)});
  }
  for (const FinishedRequest& done : effects.finished) {
    state.parts.log.info(
        "finished",
        {kv("req", done.request_id), kv("ok", done.stats.ok), kv("prompt_tokens", done.stats.prompt_tokens),
         kv("cached_tokens", done.stats.cached_tokens), kv("output_tokens", done.stats.output_tokens),
         kv("ttft_ms", done.stats.ttft_s * 1e3), kv("ms", done.stats.e2e_s * 1e3)});
    for (const ChoiceText& answer : done.answers) {
      state.parts.log.detail("answer",
                             {kv("req", done.request_id), kv("choice", answer.index), kv("text", answer.text),
                              kv("reasoning", answer.reasoning), kv("tool_calls", answer.calls)});
    }
    self->send(state.parts.metrics, done.stats);
  }
  // After the lines about them: an I/O thread logs what it has sent.
  if (!effects.outputs.empty()) state.parts.deliver(state.parts.io, std::move(effects.outputs));
  for (const std::uint64_t exchange : state.book->take_closed()) {
    if (const auto compiling = state.compiling.extract(exchange)) {
      self->send(state.parts.grammars[compiling.mapped().engine], CancelCompile{state.parts.io, exchange});
    }
    const auto credit = state.credits.find(exchange);
    if (credit == state.credits.end()) continue;
    credit->second.promise.deliver(Closed{exchange});
    state.deadlines.erase({credit->second.deadline_ns, exchange});
    state.credits.erase(credit);
  }
}

void fail(SessionHostSelf self, std::uint64_t exchange, const Status& status) {
  Effects effects;
  self->state.book->fail(exchange, status, now_ns(), effects);
  act(self, effects);
}

/// Gives the engine the sequences of a request. Without any the request has ended, or waits: for an engine, a
/// grammar, or to run alone.
void submit(SessionHostSelf self, Submit&& sequences) {
  auto& state = self->state;
  if (!sequences.sequences.empty()) {
    if (sequences.attempt > 0 && !state.book->is_handed_over(sequences.exchange, sequences.attempt)) {
      state.parts.log.info("resubmitted",
                           {kv("req", sequences.request_id), kv("attempt", sequences.attempt),
                            kv("sequences", sequences.sequences.size()), kv("alone", sequences.alone)});
    }
    const auto process = state.book->engine_of(sequences.exchange);
    if (auto expected = state.book->expect(sequences)) {
      const auto& [engine, epoch] = expected->engine;
      for (ExpectBlocks& prompt : expected->prompts)
        state.parts.engines[engine]->expect(std::move(prompt), epoch);
    }
    if (process) state.parts.engines[process->engine]->submit(std::move(sequences), process->epoch);
  } else if (!state.retries && state.book->waits()) {
    state.retries = true;
    self->delayed_send(self, kRetryAlone, RetryAlone{});
  }
}

/// For a neighbour's work on a request: until the request has ended in any case.
std::chrono::nanoseconds patience_for(SessionHostSelf self, std::uint64_t exchange) {
  const auto credit = self->state.credits.find(exchange);
  const std::int64_t left = credit == self->state.credits.end() ? 0 : credit->second.deadline_ns - now_ns();
  return std::chrono::nanoseconds(std::max<std::int64_t>(left, 0)) + kAfterTimeout;
}

/// An answer of GRAMMAR that says nothing about the request: it is of an engine that has ended, or is ending.
bool is_lost(const Status& status) {
  return status.code == Code::unavailable && status.reason == kEngineLost;
}

void bring(SessionHostSelf self, std::uint64_t exchange);

void compile(SessionHostSelf self, std::uint64_t exchange, Compile job) {
  if (self->state.parts.grammars.empty()) {
    return fail(self, exchange,
                {Code::unsupported, job.form.param + " is not offered by this server", job.form.param,
                 "unsupported_parameter"});
  }
  // The numbers of grammars are those of one process of the engine, and mean nothing to the next.
  const EngineProcess process = *self->state.book->engine_of(exchange);
  self->state.compiling.emplace(exchange, process);
  const auto lost = [=] {
    if (!self->state.book->runs(process)) return;
    self->state.compiling.erase(exchange);
    self->state.book->compile_lost(exchange);
  };
  auto pending =
      self->request(self->state.parts.grammars[process.engine], patience_for(self, exchange), std::move(job));
  pending.then(
      [=, end_deadline = deadline_end(self, pending)](const Compiled& compiled) {
        end_deadline();
        if (!self->state.book->runs(process)) return;
        if (is_lost(compiled.status)) return lost();
        const auto asked = self->state.compiling.find(exchange);
        const bool open = asked != self->state.compiling.end() && asked->second == process;
        if (open) self->state.compiling.erase(asked);
        Effects effects;
        Submit sequences = self->state.book->compiled(exchange, process, compiled, now_ns(), effects);
        act(self, effects);
        if (open && !compiled.status.ok()) return bring(self, exchange);  // to another engine, if it is open
        submit(self, std::move(sequences));
      },
      [=](const caf::error&) { lost(); });
}

/// Brings a request to its engine, or to one that is chosen now.
void bring(SessionHostSelf self, std::uint64_t exchange) {
  if (std::optional<Compile> job = self->state.book->take_compile(exchange)) {
    return compile(self, exchange, *std::move(job));
  }
  Effects effects;
  Submit sequences = self->state.book->submit(exchange, now_ns(), effects);
  act(self, effects);
  submit(self, std::move(sequences));
}

/// Has the images of a request decoded. Its prompt fits the model.
void prepare(SessionHostSelf self, std::uint64_t exchange) {
  auto& state = self->state;
  auto pending =
      self->request(state.parts.media, patience_for(self, exchange), PrepareMedia{state.parts.io, exchange});
  pending.then(
      [=, end_deadline = deadline_end(self, pending)](MediaReady& media) {
        end_deadline();
        Effects effects;
        Submit sequences = self->state.book->prepared(exchange, std::move(media), now_ns(), effects);
        act(self, effects);
        if (sequences.sequences.empty()) return bring(self, exchange);
        submit(self, std::move(sequences));
      },
      [=](const caf::error&) {
        fail(self, exchange, failure(Code::internal, "the images of this request could not be decoded"));
      });
}

void encoded(SessionHostSelf self, std::uint64_t exchange, Encoded& result) {
  Effects effects;
  Submit sequences = self->state.book->encoded(exchange, std::move(result), now_ns(), effects);
  act(self, effects);
  if (self->state.book->take_prepare(exchange)) return prepare(self, exchange);
  if (sequences.sequences.empty()) return bring(self, exchange);
  submit(self, std::move(sequences));
}

/// Forms that a process which is gone was compiling are asked for again.
void forget_compiles(SessionHostSelf self) {
  auto& state = self->state;
  std::erase_if(state.compiling, [&](const auto& entry) { return !state.book->runs(entry.second); });
}

void engine_up(SessionHostSelf self, const EngineUp& up) {
  auto& state = self->state;
  Effects effects;
  const std::vector<std::uint64_t> ready = state.book->engine_up({up.engine, up.epoch}, now_ns(), effects);
  forget_compiles(self);
  act(self, effects);
  if (!ready.empty()) {
    state.parts.log.info("engine_up",
                         {kv("engine", up.engine), kv("epoch", up.epoch), kv("requests", ready.size())});
  }
  for (const std::uint64_t exchange : ready) bring(self, exchange);
}

void waited_for_engine(SessionHostSelf self, const WaitedForEngine& waited);

void engine_down(SessionHostSelf self, const EngineDown& down) {
  auto& state = self->state;
  Effects effects;
  state.book->engine_down({down.engine, down.epoch}, now_ns(), effects);
  forget_compiles(self);
  state.parts.log.warning("engine_down", {kv("engine", down.engine), kv("epoch", down.epoch),
                                          kv("why", down.why), kv("requests", state.book->size())});
  act(self, effects);
  if (state.book->is_prefill(down.engine)) {
    waited_for_engine(self, {down.engine, down.epoch});
  } else if (state.parts.engines.size() > 1) {
    self->delayed_send(self, state.parts.wait_for_engine, WaitedForEngine{down.engine, down.epoch});
  }
}

/// Gives what waits for an engine to others.
void waited_for_engine(SessionHostSelf self, const WaitedForEngine& waited) {
  auto& state = self->state;
  const std::vector<std::uint64_t> ready = state.book->stop_waiting({waited.engine, waited.epoch});
  if (ready.empty()) return;
  state.parts.log.info("given_to_others", {kv("engine", waited.engine), kv("requests", ready.size())});
  for (const std::uint64_t exchange : ready) bring(self, exchange);
}

/// Brings what prefill instances are done with to engines that go on.
void handed_over(SessionHostSelf self, const Effects& effects) {
  for (const HandedOver& one : effects.handed_over) {
    self->state.parts.log.stage(one.failed ? "given_back" : "handed_over",
                                {kv("req", one.request_id), kv("engine", one.engine)});
    bring(self, one.exchange);
  }
}

void retry_alone(SessionHostSelf self) {
  self->state.retries = false;
  for (const std::uint64_t exchange : self->state.book->waiting()) bring(self, exchange);
}

/// Logs entries that were dropped: rarely, as each step may bring some.
void report_drops(SessionHostSelf self) {
  auto& state = self->state;
  const std::uint64_t dropped = state.book->dropped();
  if (dropped < std::max<std::uint64_t>(1, 2 * state.reported_drops)) return;
  state.reported_drops = dropped;
  state.parts.log.warning("dropped_tokens", {kv("entries", dropped)});
}

/// Index of the TOKENIZER with the fewest jobs in the common lane; equal ones take turns.
std::size_t least_busy(SessionHostState& state) {
  const std::size_t tokenizers = state.parts.tokenizers.size();
  std::size_t best = state.next_tokenizer++ % tokenizers;
  for (std::size_t i = 0; i < tokenizers; ++i) {
    if (state.jobs[i] < state.jobs[best]) best = i;
  }
  return best;
}

void feed_tokenizers(SessionHostSelf self);

/// Gives waiting requests of a lane to TOKENIZERs, in order, while one has room. Lanes but the common one are
/// those of the last TOKENIZER.
void feed(SessionHostSelf self, TextLane lane) {
  auto& state = self->state;
  auto& waiting = state.waiting[static_cast<std::size_t>(lane)];
  const std::size_t last = state.parts.tokenizers.size() - 1;
  while (!waiting.empty()) {
    const std::size_t place =
        lane == TextLane::common ? least_busy(state) : last + static_cast<std::size_t>(lane);
    if (state.jobs[place] == kJobsPerTokenizer) return;
    const std::uint64_t exchange = waiting.begin()->second;
    waiting.erase(waiting.begin());
    std::optional<Encode> job = state.book->take_encode(exchange);
    if (!job) continue;  // the client has left
    job->lane = lane;
    const auto done = [=] {
      --self->state.jobs[place];
      feed_tokenizers(self);
    };
    ++state.jobs[place];
    const auto& tokenizer = state.parts.tokenizers[std::min(place, last)];
    auto pending = self->request(tokenizer, patience_for(self, exchange), *std::move(job));
    pending.then(
        [=, end_deadline = deadline_end(self, pending)](Encoded& result) {
          end_deadline();
          done();
          encoded(self, exchange, result);
        },
        [=](const caf::error&) {
          done();
          fail(self, exchange, failure(Code::internal, "the tokenizer failed on this request"));
        });
  }
}

void feed_tokenizers(SessionHostSelf self) {
  for (const TextLane lane : {TextLane::common, TextLane::long_texts, TextLane::background}) feed(self, lane);
}

/// Sees to it that an Expire comes when the next request's time is over.
void look_at_deadlines(SessionHostSelf self) {
  auto& state = self->state;
  if (state.deadlines.empty()) return;
  const std::int64_t now = now_ns();
  const std::int64_t next = std::clamp(state.deadlines.begin()->first, now, now + kLookNs);
  if (state.next_look_ns != 0 && state.next_look_ns <= next) return;
  state.next_look_ns = next;
  self->delayed_send(self, std::chrono::nanoseconds(next - now), Expire{});
}

void expire(SessionHostSelf self) {
  auto& state = self->state;
  const std::int64_t now = now_ns();
  Effects effects;
  while (!state.deadlines.empty() && state.deadlines.begin()->first <= now) {
    const std::uint64_t exchange = state.deadlines.begin()->second;
    state.deadlines.erase(state.deadlines.begin());
    state.book->expire(exchange, now, begin_slice(self), effects);
  }
  const std::vector<std::uint64_t> left = state.book->leave_silent(now, effects);
  act(self, effects);
  if (!left.empty()) state.parts.log.warning("prefill_instance_silent", {kv("requests", left.size())});
  for (const std::uint64_t exchange : left) {
    state.compiling.erase(exchange);
    bring(self, exchange);
  }
  if (state.next_look_ns <= now) state.next_look_ns = 0;
  look_at_deadlines(self);
}

/// Lets a request wait for a TOKENIZER.
void queue_text(SessionHostSelf self, std::uint64_t exchange, std::int64_t arrived_ns) {
  auto& state = self->state;
  const std::int64_t bytes = state.book->text_bytes(exchange);
  const TextLane lane = bytes <= kLongBytes                ? TextLane::common
                        : state.book->background(exchange) ? TextLane::background
                                                           : TextLane::long_texts;
  state.waiting[static_cast<std::size_t>(lane)].emplace(arrived_ns + bytes * kNsPerByte, exchange);
  feed_tokenizers(self);
}

/// Has the images of a request measured; its text is next.
void measure(SessionHostSelf self, MeasureMedia&& job, std::int64_t arrived_ns) {
  auto& state = self->state;
  const std::uint64_t exchange = job.exchange;
  if (!state.parts.media) {
    return fail(
        self, exchange,
        {Code::unsupported, "this model reads text only", job.items.front().param, "unsupported_modality"});
  }
  auto pending = self->request(state.parts.media, patience_for(self, exchange), std::move(job));
  pending.then(
      [=, end_deadline = deadline_end(self, pending)](MeasuredMedia& media) {
        end_deadline();
        Effects effects;
        const bool goes_on = self->state.book->measured(exchange, std::move(media), now_ns(), effects);
        act(self, effects);
        if (goes_on) queue_text(self, exchange, arrived_ns);
      },
      [=](const caf::error&) {
        fail(self, exchange, failure(Code::internal, "the images of this request could not be read"));
      });
}

void begin(SessionHostSelf self, Ask& ask, const caf::typed_response_promise<Closed>& credit) {
  auto& state = self->state;
  const std::uint64_t exchange = ask.exchange;
  const std::int64_t deadline = ask.arrived_ns + ask.timeout_ns;
  state.credits.emplace(exchange, SessionHostState::Credit{credit, deadline});
  state.deadlines.emplace(deadline, exchange);
  look_at_deadlines(self);
  state.parts.log.stage("opened", {kv("req", ask.request_id)});
  const std::int64_t arrived_ns = ask.arrived_ns;
  state.book->open(std::move(ask));
  if (std::optional<MeasureMedia> media = state.book->take_media(exchange))
    return measure(self, *std::move(media), arrived_ns);
  queue_text(self, exchange, arrived_ns);
}

caf::typed_response_promise<Closed> open(SessionHostSelf self, Ask& ask) {
  auto& state = self->state;
  const std::uint64_t exchange = ask.exchange;
  const http::Api api = ask.api;
  auto credit = self->make_response_promise<Closed>();
  const std::string request_id = ask.request_id;
  const Status fault = contain(state.parts.log, "new session", request_id, [&] { begin(self, ask, credit); });
  if (fault.ok()) return credit;
  fail(self, exchange, fault);  // if the session is open by now
  if (!credit.pending()) return credit;
  std::vector<http::Output> outputs;
  outputs.push_back(http::error_output(exchange, fault, 0, api));
  state.parts.deliver(state.parts.io, std::move(outputs));
  if (const auto place = state.credits.find(exchange); place != state.credits.end()) {
    state.deadlines.erase({place->second.deadline_ns, exchange});
    state.credits.erase(place);
  }
  credit.deliver(Closed{exchange});
  return credit;
}

}  // namespace

session_host_actor::behavior_type session_host_behavior(SessionHostSelf self, SessionHostParts parts) {
  answer_probes(self);
  self->state.parts = std::move(parts);
  self->state.book =
      std::make_unique<SessionBook>(self->state.parts.context, KeySource(), self->state.parts.log,
                                    self->state.parts.quarantine, self->state.parts.router);
  self->state.jobs.resize(self->state.parts.tokenizers.size() + kTextLanes - 1);
  self->state.next_tokenizer = self->state.parts.io;  // so that the hosts begin with different ones
  return {
      answer_beat,
      [self](Ask& ask) { return open(self, ask); },
      [self](const Withdraw& gone) {
        Effects effects;
        self->state.book->withdraw(gone.exchange, now_ns(), effects);
        act(self, effects);
      },
      [self](const StepTokens& step) {
        Effects effects;
        self->state.book->take(step, now_ns(), begin_slice(self), effects);
        act(self, effects);
        handed_over(self, effects);
        self->state.parts.engines[step.engine]->took_step();
        report_drops(self);
      },
      [self](const Expire&) { expire(self); },
      [self](const Resume& more) {
        Effects effects;
        self->state.book->resume(more.exchange, now_ns(), begin_slice(self), effects);
        act(self, effects);
      },
      [self](const Abandon&) {
        Effects effects;
        self->state.book->fail_all(failure(Code::unavailable, "the server is shutting down"), now_ns(),
                                   effects);
        act(self, effects);
      },
      [self](const EngineUp& up) { engine_up(self, up); },
      [self](const EngineDown& down) { engine_down(self, down); },
      [self](const Refused& refused) {
        Effects effects;
        const bool again = self->state.book->refused(refused, now_ns(), effects);
        act(self, effects);
        if (again) bring(self, refused.exchange);
      },
      [self](const RetryAlone&) { retry_alone(self); },
      [self](const WaitedForEngine& waited) { waited_for_engine(self, waited); },
  };
}

}  // namespace troupe
