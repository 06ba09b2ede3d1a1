#include "actors/grammar/grammar_actor.h"

#include <algorithm>
#include <utility>

#include "actors/grammar/mask_records.h"
#include "actors/record_bytes.h"
#include "base/clock.h"
#include "base/contain.h"

namespace troupe {
namespace {

using GrammarSelf = grammar_actor::stateful_pointer<GrammarState>;

grammar::Form::Kind kind_of(http::AnswerForm::Kind kind) {
  using From = http::AnswerForm::Kind;
  using To = grammar::Form::Kind;
  switch (kind) {
    case From::json_schema: return To::json_schema;
    case From::regex: return To::regex;
    case From::choice: return To::choice;
    case From::grammar: return To::grammar;
    case From::structural_tag: return To::structural_tag;
    default: return To::json_object;
  }
}

/// What sequences are held to: `form` may be null.
Compiled admit(GrammarSelf self, std::shared_ptr<const grammar::CompiledForm> form,
               grammar::ThinkingRule thinking) {
  GrammarState& state = self->state;
  auto spec = std::make_shared<grammar::ConstraintSpec>();
  spec->form = std::move(form);
  spec->thinking = std::move(thinking);
  spec->stop_ids = state.stop_ids;
  spec->vocabulary = state.parts.vocabulary;
  return {{}, state.grammars.add(std::move(spec))};
}

void begin_compile(GrammarSelf self, Compile& job, std::uint64_t ticket, const caf::actor_addr& asked_by,
                   caf::typed_response_promise<Compiled>& promise) {
  GrammarState& state = self->state;
  if (job.form.kind == http::AnswerForm::Kind::free) {
    promise.deliver(admit(self, nullptr, std::move(job.thinking)));
    return;
  }
  state.compiling.emplace(
      ticket,
      GrammarState::Request{
          promise, job.request_id, std::move(job.thinking), now_ns(), {job.io, job.exchange}, asked_by});
  state.forms->submit(ticket,
                      {kind_of(job.form.kind), std::move(job.form.value), std::move(job.form.param),
                       std::move(job.form.places)},
                      std::move(job.client));
}

caf::typed_response_promise<Compiled> compile(GrammarSelf self, Compile& job) {
  GrammarState& state = self->state;
  // Before the promise, which takes the sender away.
  const auto asked_by = caf::actor_cast<caf::actor_addr>(self->current_sender());
  auto promise = self->make_response_promise<Compiled>();
  const std::uint64_t ticket = state.next_ticket++;
  Status fault = contain(state.parts.log, "grammar", job.request_id,
                         [&] { begin_compile(self, job, ticket, asked_by, promise); });
  if (fault.ok()) return promise;
  state.compiling.erase(ticket);
  if (promise.pending()) promise.deliver(Compiled{std::move(fault), 0});
  return promise;
}

/// The request has ended: its form is compiled for others that wait for it, or not at all.
void drop(GrammarSelf self, const CancelCompile& cancel) {
  GrammarState& state = self->state;
  const auto asked_by = caf::actor_cast<caf::actor_addr>(self->current_sender());
  const auto is_it = [&](const auto& entry) {
    const GrammarState::Request& request = entry.second;
    return request.asked_by == asked_by && request.exchange == std::pair(cancel.io, cancel.exchange);
  };
  const auto it = std::find_if(state.compiling.begin(), state.compiling.end(), is_it);
  if (it == state.compiling.end()) return;
  state.forms->drop(it->first);
  it->second.promise.deliver(Compiled{failure(Code::unavailable, "the request has ended"), 0});
  state.compiling.erase(it);
}

void compiled(GrammarSelf self, CompileOutcome& outcome, GrammarState::Request& request) {
  GrammarState& state = self->state;
  const double ms = static_cast<double>(now_ns() - request.began_ns) * 1e-6;
  if (!outcome.status.ok()) {
    state.parts.log.info("refused",
                         {kv("req", request.request_id), kv("why", outcome.status.message), kv("ms", ms)});
    request.promise.deliver(Compiled{std::move(outcome.status), 0});
    return;
  }
  state.parts.log.info(
      "compiled", {kv("req", request.request_id), kv("bytes", outcome.form->memory_bytes()), kv("ms", ms)});
  const Compiled admitted = admit(self, std::move(outcome.form), std::move(request.thinking));
  state.requests.emplace(admitted.grammar, std::move(request.request_id));
  request.promise.deliver(admitted);
}

void compiled(GrammarSelf self, const FormReady& ready) {
  CompileOutcome outcome = self->state.forms->take(ready.ticket);
  auto node = self->state.compiling.extract(ready.ticket);
  if (node.empty()) return;  // it was dropped
  GrammarState::Request& request = node.mapped();
  Status fault = contain(self->state.parts.log, "compiled form", request.request_id,
                         [&] { compiled(self, outcome, request); });
  if (!fault.ok() && request.promise.pending()) request.promise.deliver(Compiled{std::move(fault), 0});
}

/// Ends the request of a form that cannot be followed: the first of its sequences that says so does.
void lose(GrammarSelf self, const RequestKey& key, bool too_complex, const std::string& why) {
  GrammarState& state = self->state;
  const auto request = state.requests.extract(state.grammars.grammar_of(key));
  if (request.empty()) return;
  state.parts.log.error(too_complex ? "too_slow" : "fault", {kv("req", request.mapped()), kv("why", why)});
  self->send(state.scheduler, FormLost{key, too_complex, why});
}

/// Counts what a mask took, before it is sent: no answer ends well with a form that takes too long.
void account(GrammarSelf self, const Follower& follower) {
  GrammarState& state = self->state;
  const grammar::Constraint& constraint = follower.constraint;
  if (!constraint.fault().ok()) lose(self, follower.key, false, constraint.fault().message);
  const bool used_up = !state.grammars.charge(follower.key, follower.mask_ns);
  if (used_up || constraint.too_slow())
    lose(self, follower.key, true, used_up ? "all its masks together" : "one mask");
  if (constraint.failed() && ++state.failed == 1) state.parts.log.error("mask_ignored", {});
}

void step(GrammarSelf self, const GrammarStep& update) {
  using Mask = ReadyRow::Mask;
  GrammarState& state = self->state;
  state.scheduler = caf::actor_cast<scheduler_actor>(self->current_sender());
  state.pace.saw(update.step_ns);
  for (const RequestKey& key : update.ends) state.filler->drop(key);
  std::vector<ReadyRow>& rows = state.grammars.take(update);
  if (rows.empty()) return;
  state.filler->fill(rows, Clock::now() + std::chrono::nanoseconds(state.pace.patience_ns()));
  MasksLate late{state.grammars.epoch(), {}};
  std::vector<ReadyRow> in_vain;
  for (const ReadyRow& row : rows) {
    if (row.mask == Mask::late) {
      late.keys.push_back(row.key);
      state.grammars.late(row.key, in_vain);
    } else if (row.mask == Mask::made && state.grammars.done(row.key)) {
      account(self, *row.follower);
    }
  }
  rows.insert(rows.end(), in_vain.begin(), in_vain.end());
  if (!late.keys.empty()) self->send(state.scheduler, std::move(late));
  write_masks(state.grammars.epoch(), rows, [&](std::span<const std::byte> record) {
    self->send(state.parts.link, SendMasks{to_bytes(record)});
  });
}

void take_made(GrammarSelf self) {
  GrammarState& state = self->state;
  MasksMade made;
  for (const auto& follower : state.filler->take_late()) {
    account(self, *follower);
    if (state.grammars.made(follower->key)) made.keys.push_back(follower->key);
  }
  if (!made.keys.empty()) self->send(state.scheduler, std::move(made));
}

}  // namespace

grammar_actor::behavior_type grammar_behavior(GrammarSelf self, GrammarParts parts) {
  answer_probes(self);
  GrammarState& state = self->state;
  state.parts = std::move(parts);
  state.stop_ids = state.parts.stop_ids;
  std::sort(state.stop_ids.begin(), state.stop_ids.end());
  state.parts.forms.process.log = state.parts.log;
  const auto own = caf::actor_cast<caf::weak_actor_ptr>(self);
  state.filler = std::make_unique<MaskFiller>(state.parts.helpers, [own] {
    if (const auto actor = caf::actor_cast<caf::strong_actor_ptr>(own)) {
      caf::anon_send(caf::actor_cast<grammar_actor>(actor), TakeMade{});
    }
  });
  state.forms = std::make_unique<FormService>(std::move(state.parts.forms), [own](std::uint64_t ticket) {
    if (const auto actor = caf::actor_cast<caf::strong_actor_ptr>(own)) {
      caf::anon_send(caf::actor_cast<grammar_actor>(actor), FormReady{ticket});
    }
  });
  return {
      answer_beat,
      [self](Compile& job) { return compile(self, job); },
      [self](const CancelCompile& cancel) { drop(self, cancel); },
      [self](const ReleaseGrammar& release) {
        self->state.grammars.release(release.grammar);
        self->state.requests.erase(release.grammar);
      },
      [self](const GrammarStep& update) { step(self, update); },
      [self](const FormReady& ready) { compiled(self, ready); },
      [self](const TakeMade&) { take_made(self); },
  };
}

}  // namespace troupe
