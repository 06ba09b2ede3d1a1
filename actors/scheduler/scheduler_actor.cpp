#include "actors/scheduler/scheduler_actor.h"

#include <algorithm>
#include <span>
#include <utility>

#include "actors/record_bytes.h"
#include "base/clock.h"
#include "base/contain.h"

namespace troupe {
namespace {

using SchedulerSelf = scheduler_actor::stateful_pointer<SchedulerState>;

void tell_metrics(SchedulerSelf self, StepStats stats) {
  stats.kv = self->state.kv;
  for (const auto& front : self->state.parts.fronts) front->stats(stats);
}

/// Reports the queue while no step runs: METRICS would otherwise show the values of the last step.
void tell_idle_metrics(SchedulerSelf self) {
  const Scheduler& scheduler = *self->state.scheduler;
  if (scheduler.plans_in_flight() > 0) return;
  StepStats stats;
  stats.running = scheduler.running();
  stats.waiting = scheduler.waiting();
  tell_metrics(self, stats);
}

/// Tells GRAMMAR what it has to know. After the plan that it is about: masks follow their plan on the ring.
void tell_grammar(SchedulerSelf self) {
  GrammarStep update;
  if (!self->state.scheduler->take_grammar(update)) return;
  update.step_ns = static_cast<std::int64_t>(self->state.output.stats.step_s * 1e9);
  self->send(self->state.parts.grammar, std::move(update));
}

/// Sends what the worker has to know before the next plan, or, if there is none, has to do meanwhile.
void send_media(SchedulerSelf self) {
  std::vector<std::vector<std::byte>> records;
  if (!self->state.scheduler->take_media(records)) return;
  for (const std::vector<std::byte>& record : records)
    self->send(self->state.parts.link, SendMedia{to_bytes(record)});
}

/// Tells GRAMMAR of new tokens first, since the masks of the step that runs wait for them; then sends plans,
/// since the worker waits for them, then the asks for later steps.
void advance(SchedulerSelf self) {
  SchedulerState& state = self->state;
  tell_grammar(self);
  for (;;) {
    const auto plan = state.scheduler->plan(now_ns());
    send_media(self);
    if (plan.empty()) break;
    self->send(state.parts.link, SendPlan{to_bytes(plan)});
    tell_grammar(self);
  }
  CacheAsks asks;
  if (!state.scheduler->take_asks(asks)) return;
  self->request(state.parts.cache, kTurnPatience, std::move(asks))
      .then(
          [self](const CacheGrants& grants) {
            self->state.kv = grants.status;
            self->state.scheduler->granted(grants);
            advance(self);
            tell_idle_metrics(self);
          },
          [self](const caf::error& error) {
            self->quit(caf::make_error(caf::sec::runtime_error,
                                       "no answer from CACHE: " + self->system().render(error)));
          });
}

/// Sends one message to each SESSION HOST that has sequences in the step.
void tell_hosts(SchedulerSelf self) {
  SchedulerState& state = self->state;
  for (const HostTokens& to : state.output.hosts) {
    if (to.step.sequences.empty()) continue;
    FrontPort& front = *state.parts.fronts[to.front];
    front.tokens(to.host, to.step);
    if (front.behind()) state.scheduler->hold(to.front, true);
  }
}

Status check_grammar(const SchedulerParts& parts, const Submit& request) {
  const auto free = [](const SequenceSpec& spec) { return spec.grammar == 0; };
  if (parts.grammar || std::all_of(request.sequences.begin(), request.sequences.end(), free)) return {};
  return invalid("The answer cannot be held to a form: no grammar backend runs here.", "response_format");
}

void submit(SchedulerSelf self, FrontSubmit& message) {
  Submit& request = message.submit;
  const std::uint32_t host = request.sequences.empty() ? 0 : request.sequences.front().host;
  SchedulerState& state = self->state;
  Status status;
  const Status fault = contain(state.parts.log, "submission", request.request_id, [&] {
    status = check_grammar(state.parts, request);
    if (status.ok()) status = state.scheduler->submit(request, message.front);
  });
  if (!fault.ok()) {
    // The checks change nothing. Behind them a queue that is half changed must not be used: the actor's end
    // ends the engine.
    const auto held = [&](const SequenceSpec& spec) { return state.scheduler->holds(spec.key); };
    if (std::any_of(request.sequences.begin(), request.sequences.end(), held)) {
      self->quit(caf::make_error(caf::sec::runtime_error, "a request could not be queued: " + fault.message));
    }
    status = fault;
  }
  if (!status.ok()) {
    state.parts.log.info("refused", {kv("req", request.request_id), kv("code", to_string(status.code)),
                                     kv("why", status.message)});
    state.parts.fronts[message.front]->refused(host, {request.exchange, request.attempt, status});
    return;
  }
  state.parts.log.info("queued", {kv("req", request.request_id), kv("sequences", request.sequences.size()),
                                  kv("waiting", state.scheduler->waiting())});
  advance(self);
}

/// n-grams may be rare in a text; a draft layer is right now and then, whatever the text.
void look_at_drafts(SchedulerState& state) {
  if (state.parts.drafts != config::DraftMethod::mtp) return;
  const auto share = state.draft_alarm.observe(state.output.stats.drafts);
  if (!share) return;
  state.parts.log.error(
      "drafts_rejected",
      {kv("share_accepted", *share), kv("draft_tokens", metrics::DraftAlarm::kDrafted),
       kv("why",
          "the draft layer does not fit the model: answers stay right, but drafts cost time; check the key "
          "\"model\" of --speculative-config, or leave it out")});
}

void step_done(SchedulerSelf self, const StepDone& done) {
  SchedulerState& state = self->state;
  const Committed verdict = state.scheduler->commit(std::as_bytes(std::span(done.record)), state.output);
  if (verdict == Committed::malformed) {
    state.parts.log.error("malformed_result", {kv("bytes", done.record.size())});
    return self->quit(caf::make_error(caf::sec::runtime_error, "the worker's result contradicts its plan"));
  }
  if (verdict == Committed::stale) return;
  advance(self);
  tell_hosts(self);
  tell_metrics(self, state.output.stats);
  look_at_drafts(state);
}

void media_done(SchedulerSelf self, const MediaReport& report) {
  SchedulerState& state = self->state;
  const Committed verdict =
      state.scheduler->media_done(std::as_bytes(std::span(report.record)), state.output);
  if (verdict == Committed::malformed) {
    state.parts.log.error("malformed_media_done", {kv("bytes", report.record.size())});
    return self->quit(
        caf::make_error(caf::sec::runtime_error, "the worker has encoded what nobody asked for"));
  }
  if (verdict == Committed::stale) return;
  for (const HostTokens& host : state.output.hosts) {
    for (const SequenceTokens& lost : host.step.sequences)
      state.parts.log.warning("patches_gone", {kv("host", host.host), kv("why", host.step.error_of(lost))});
  }
  advance(self);
  tell_hosts(self);
}

void link_up(SchedulerSelf self, const LinkUp& up) {
  SchedulerState& state = self->state;
  state.scheduler->detach(Orphans::requeue, {}, state.output);
  tell_hosts(self);
  state.scheduler->attach(up.epoch, up.capacity, state.output);
  tell_hosts(self);
  state.kv = {up.capacity.kv_blocks, up.capacity.kv_blocks};
  state.parts.log.info("link_up",
                       {kv("epoch", up.epoch), kv("device", up.device), kv("blocks", up.capacity.kv_blocks),
                        kv("max_model_len", up.capacity.max_model_len)});
  advance(self);
  tell_idle_metrics(self);
}

void link_down(SchedulerSelf self, const LinkDown& down) {
  SchedulerState& state = self->state;
  state.parts.log.warning("link_down", {kv("why", down.why), kv("running", state.scheduler->running()),
                                        kv("waiting", state.scheduler->waiting())});
  state.scheduler->detach(Orphans::requeue, {}, state.output);
  tell_grammar(self);
  tell_hosts(self);
  state.kv = {state.kv.total, state.kv.total};
  tell_idle_metrics(self);
}

}  // namespace

scheduler_actor::behavior_type scheduler_behavior(SchedulerSelf self, SchedulerParts parts) {
  answer_probes(self);
  self->state.scheduler.emplace(parts.options, parts.caching);
  self->state.parts = std::move(parts);
  return {
      answer_beat,
      [self](FrontSubmit& request) { submit(self, request); },
      [self](const Cancel& cancel) {
        for (const RequestKey& key : cancel.keys) self->state.scheduler->cancel(key);
        advance(self);
      },
      [self](const FrontReady& ready) {
        self->state.scheduler->hold(ready.front, false);
        advance(self);
      },
      [self](const FrontLost& lost) {
        self->state.scheduler->drop_front(lost.front);
        advance(self);
      },
      [self](const FrontSettled& of) { return !self->state.scheduler->serves(of.front); },
      [self](const StepDone& done) { step_done(self, done); },
      [self](const MediaReport& report) { media_done(self, report); },
      [self](const MasksLate& late) { self->state.scheduler->masks_late(late); },
      [self](const MasksMade& made) {
        self->state.scheduler->masks_made(made);
        advance(self);
      },
      [self](const FormLost& lost) {
        self->state.scheduler->form_lost(lost, self->state.output);
        advance(self);
        tell_hosts(self);
      },
      [self](const CacheGrants& update) {
        self->state.kv = update.status;
        self->state.scheduler->granted(update);
        advance(self);
        tell_idle_metrics(self);
      },
      [self](const LinkUp& up) { link_up(self, up); },
      [self](const LinkDown& down) { link_down(self, down); },
      [self](caf::get_atom) {
        const Scheduler& scheduler = *self->state.scheduler;
        return SchedulerStatus{scheduler.running(),
                               self->state.parts.options.max_num_seqs,
                               scheduler.waiting(),
                               self->state.parts.options.max_queued_requests,
                               scheduler.totals().prompt_tokens,
                               scheduler.totals().cached_tokens};
      },
  };
}

}  // namespace troupe
