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

void begin_compile(GrammarSelf self, Compile& job, std::uint64_t ticket, caf::typed_response_promise<Compiled>& promise) {
  GrammarState& state = self->state;
  if (job.form.kind == http::AnswerForm::Kind::free) {
    promise.deliver(admit(self, nullptr, std::move(job.thinking)));
    return;
  }
  state.compiling.emplace(ticket,
                          GrammarState::Request{promise, job.request_id, job.form.param, std::move(job.thinking), now_ns()});
  state.forms->submit(ticket, {kind_of(job.form.kind), std::move(job.form.value), std::move(job.form.param),
                               std::move(job.form.places)});
}

caf::typed_response_promise<Compiled> compile(GrammarSelf self, Compile& job) {
  GrammarState& state = self->state;
  auto promise = self->make_response_promise<Compiled>();
  const std::uint64_t ticket = state.next_ticket++;
  Status fault = contain(state.parts.log, "grammar", job.request_id, [&] { begin_compile(self, job, ticket, promise); });
  if (fault.ok()) return promise;
  state.compiling.erase(ticket);
  if (promise.pending()) promise.deliver(Compiled{std::move(fault), 0});
  return promise;
}

void compiled(GrammarSelf self, std::uint64_t ticket, GrammarState::Request& request) {
  GrammarState& state = self->state;
  CompileOutcome outcome = state.forms->take(ticket);
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
  state.watches.emplace(admitted.grammar,
                        GrammarState::Watch{{}, std::move(request.request_id), std::move(request.param)});
  request.promise.deliver(admitted);
}

void compiled(GrammarSelf self, const FormReady& ready) {
  auto node = self->state.compiling.extract(ready.ticket);
  if (node.empty()) return;
  GrammarState::Request& request = node.mapped();
  Status fault = contain(self->state.parts.log, "compiled form", request.request_id,
                         [&] { compiled(self, ready.ticket, request); });
  if (!fault.ok() && request.promise.pending()) request.promise.deliver(Compiled{std::move(fault), 0});
}

caf::typed_response_promise<Status> watch(GrammarSelf self, std::uint64_t grammar) {
  auto promise = self->make_response_promise<Status>();
  const auto it = self->state.watches.find(grammar);
  if (it == self->state.watches.end()) {
    promise.deliver(Status());
  } else {
    it->second.promise = promise;
  }
  return promise;
}

void end_watch(GrammarSelf self, std::uint64_t grammar, Status status) {
  auto node = self->state.watches.extract(grammar);
  if (!node.empty() && node.mapped().promise.pending()) node.mapped().promise.deliver(std::move(status));
}

/// Ends the request of a row whose form takes too long to follow.
void give_up(GrammarSelf self, std::uint64_t grammar) {
  const auto it = self->state.watches.find(grammar);
  if (it == self->state.watches.end()) return;
  const std::string param = it->second.param;
  self->state.parts.log.error("too_slow", {kv("req", it->second.request_id), kv("form", param)});
  end_watch(self, grammar, invalid(param + " is too complex: following it takes too long at this answer", param,
                                   "grammar_too_complex"));
}

/// Ends the request of a row whose form could not be followed for a fault of ours.
void end_faulty(GrammarSelf self, const ReadyRow& row) {
  const auto it = self->state.watches.find(row.grammar);
  if (it == self->state.watches.end()) return;
  const Status& fault = row.constraint->fault();
  self->state.parts.log.error("fault", {kv("req", it->second.request_id), kv("what", fault.message)});
  end_watch(self, row.grammar, fault);
}

void step(GrammarSelf self, const GrammarStep& news) {
  GrammarState& state = self->state;
  const std::vector<ReadyRow>& rows = state.grammars.take(news);
  if (rows.empty()) return;
  const auto masks = state.filler->fill(rows);
  for (const ReadyRow& row : rows) {
    if (row.constraint != nullptr && !row.constraint->fault().ok()) end_faulty(self, row);
  }
  for (const ReadyRow& row : rows) {  // before the masks are sent, so that no answer ends well with such a form
    if (row.constraint != nullptr && row.constraint->too_slow()) give_up(self, row.grammar);
  }
  write_masks(news.epoch, rows, masks, [&](std::span<const std::byte> record) {
    self->send(state.parts.link, SendMasks{to_bytes(record)});
  });
  for (const ReadyRow& row : rows) {
    if (row.constraint == nullptr || !row.constraint->failed()) continue;
    if (++state.failed == 1)
      state.parts.log.error("mask_ignored", {kv("step", row.step), kv("slot", row.slot.slot)});
  }
}

}  // namespace

grammar_actor::behavior_type grammar_behavior(GrammarSelf self, GrammarParts parts) {
  answer_probes(self);
  GrammarState& state = self->state;
  state.parts = std::move(parts);
  state.stop_ids = state.parts.forms.vocabulary.stop_ids;
  std::sort(state.stop_ids.begin(), state.stop_ids.end());
  state.parts.forms.log = state.parts.log;
  state.filler = std::make_unique<MaskFiller>(state.parts.helpers);
  const auto own = caf::actor_cast<caf::weak_actor_ptr>(self);
  state.forms = std::make_unique<FormService>(std::move(state.parts.forms), [own](std::uint64_t ticket) {
    if (const auto actor = caf::actor_cast<caf::strong_actor_ptr>(own)) {
      caf::anon_send(caf::actor_cast<grammar_actor>(actor), FormReady{ticket});
    }
  });
  return {
      answer_beat,
      [self](Compile& job) { return compile(self, job); },
      [self](const WatchGrammar& wish) { return watch(self, wish.grammar); },
      [self](const ReleaseGrammar& release) {
        self->state.grammars.release(release.grammar);
        end_watch(self, release.grammar, {});
      },
      [self](const GrammarStep& news) { step(self, news); },
      [self](const FormReady& ready) { compiled(self, ready); },
  };
}

}  // namespace troupe
