#include "actors/media/media_actor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/contain.h"

namespace troupe {
namespace {

using MediaSelf = media_actor::stateful_pointer<MediaState>;

/// How often requests that wait for memory look whether they have waited too long.
constexpr auto kLook = std::chrono::seconds(1);

double ms_since(std::int64_t began_ns) { return static_cast<double>(now_ns() - began_ns) * 1e-6; }

std::int64_t tokens_of(const std::vector<MediaGrid>& items) {
  std::int64_t tokens = 0;
  for (const MediaGrid& item : items) tokens += item.grid.tokens();
  return tokens;
}

void answer(MediaSelf self, MediaEffects::Measured& measured) {
  MediaState& state = self->state;
  const auto open = state.open.find(measured.request);
  if (open == state.open.end()) return;
  const Status& status = measured.answer.status;
  MediaState::Open& request = open->second;
  if (status.ok()) {
    state.log.stage("measured",
                    {kv("req", request.request_id), kv("items", measured.answer.items.size()),
                     kv("tokens", tokens_of(measured.answer.items)), kv("ms", ms_since(request.began_ns))});
  } else {
    state.log.info("refused", {kv("req", request.request_id), kv("code", to_string(status.code)),
                               kv("why", status.message), kv("ms", ms_since(request.began_ns))});
  }
  const bool ended = !status.ok();
  request.measured.deliver(std::move(measured.answer));
  if (ended) state.open.erase(open);
}

void answer(MediaSelf self, MediaEffects::Ready& ready) {
  MediaState& state = self->state;
  const auto open = state.open.find(ready.request);
  if (open == state.open.end()) return;
  const Status& status = ready.answer.status;
  MediaState::Open& request = open->second;
  if (status.ok()) {
    state.log.stage("prepared", {kv("req", request.request_id), kv("items", ready.answer.items.size()),
                                 kv("decoded", ready.decoded), kv("ms", ms_since(request.began_ns))});
  } else {
    state.log.info("refused", {kv("req", request.request_id), kv("code", to_string(status.code)),
                               kv("why", status.message), kv("ms", ms_since(request.began_ns))});
  }
  const bool ended = !status.ok();
  request.ready.deliver(std::move(ready.answer));
  if (ended) state.open.erase(open);
}

/// A thread that has nothing to do takes what waits at once; one video is decoded at a time.
MediaStats stats_of(const MediaState& state) {
  MediaStats stats = state.book->stats();
  const std::int32_t images = state.book->in_work(false), videos = state.book->in_work(true);
  stats.decodes_running = std::min(images, state.decoders) + std::min(videos, 1);
  stats.decodes_waiting = images + videos - stats.decodes_running;
  return stats;
}

/// Carries out what the book wants. Every handler ends with it.
void act(MediaSelf self, MediaEffects& effects) {
  MediaState& state = self->state;
  for (MeasureWork& work : effects.measure) state.threads->measure(std::move(work));
  for (PrepareWork& work : effects.prepare) state.threads->prepare(std::move(work));
  for (const std::uint64_t ticket : effects.drop) state.threads->drop(ticket);
  for (const wire::PatchPlace& place : effects.remove) state.threads->remove(place);
  for (auto& measured : effects.measured) answer(self, measured);
  for (auto& ready : effects.ready) answer(self, ready);
  if (!state.looks && state.book->waits()) {
    state.looks = true;
    self->delayed_send(self, kLook, MediaWaited{});
  }
  if (const MediaStats stats = stats_of(state); stats != state.told) {
    state.told = stats;
    self->send(state.metrics, stats);
  }
}

caf::typed_response_promise<MeasuredMedia> measure(MediaSelf self, MeasureMedia& job) {
  MediaState& state = self->state;
  auto promise = self->make_response_promise<MeasuredMedia>();
  const MediaRequestId id{job.io, job.exchange};
  state.open.emplace(id, MediaState::Open{job.request_id, now_ns(), promise, {}});
  MediaEffects effects;
  const std::string request_id = job.request_id;
  const Status fault = contain(state.log, "media", request_id,
                               [&] { state.book->measure(std::move(job), now_ns(), effects); });
  if (!fault.ok()) {
    effects.measured.push_back({id, {fault, {}}});
    state.book->release(id, effects);
  }
  act(self, effects);
  return promise;
}

caf::typed_response_promise<MediaReady> prepare(MediaSelf self, const PrepareMedia& job) {
  MediaState& state = self->state;
  auto promise = self->make_response_promise<MediaReady>();
  const MediaRequestId id{job.io, job.exchange};
  const auto open = state.open.find(id);
  if (open == state.open.end()) {
    promise.deliver(MediaReady{failure(Code::internal, "images were not measured"), {}});
    return promise;
  }
  open->second.began_ns = now_ns();
  open->second.ready = promise;
  MediaEffects effects;
  state.book->prepare(id, now_ns(), effects);
  act(self, effects);
  return promise;
}

void release(MediaSelf self, const ReleaseMedia& ended) {
  MediaState& state = self->state;
  const MediaRequestId id{ended.io, ended.exchange};
  if (auto open = state.open.extract(id)) {
    const Status gone = failure(Code::unavailable, "the request has ended");
    if (open.mapped().measured.pending()) open.mapped().measured.deliver(MeasuredMedia{gone, {}});
    if (open.mapped().ready.pending()) open.mapped().ready.deliver(MediaReady{gone, {}});
  }
  MediaEffects effects;
  state.book->release(id, effects);
  act(self, effects);
}

void take(MediaSelf self) {
  MediaOutcomes outcomes = self->state.threads->take();
  MediaEffects effects;
  for (auto& [ticket, file] : outcomes.measured) self->state.book->measured(ticket, std::move(file), effects);
  for (auto& [ticket, patches] : outcomes.prepared)
    self->state.book->prepared(ticket, std::move(patches), effects);
  act(self, effects);
}

}  // namespace

media_actor::behavior_type media_behavior(MediaSelf self, MediaParts parts, metrics_actor metrics) {
  answer_probes(self);
  MediaState& state = self->state;
  state.log = parts.log;
  state.decoders = static_cast<std::int32_t>(parts.threads.decoders);
  state.metrics = std::move(metrics);
  state.book = std::make_unique<MediaBook>(parts.bounds, parts.threads.files_key);
  const auto own = caf::actor_cast<caf::weak_actor_ptr>(self);
  state.threads = std::make_unique<MediaThreads>(std::move(parts.threads), [own] {
    if (const auto actor = caf::actor_cast<caf::strong_actor_ptr>(own)) {
      caf::anon_send(caf::actor_cast<media_actor>(actor), TakeMedia{});
    }
  });
  state.told = stats_of(state);
  self->send(state.metrics, state.told);  // the limits
  return {
      answer_beat,
      [self](MeasureMedia& job) { return measure(self, job); },
      [self](const PrepareMedia& job) { return prepare(self, job); },
      [self](const ReleaseMedia& ended) { release(self, ended); },
      [self](const TakeMedia&) { take(self); },
      [self](const MediaWaited&) {
        self->state.looks = false;
        MediaEffects effects;
        self->state.book->refuse_late(now_ns(), effects);
        act(self, effects);
      },
      [self](caf::get_atom) { return stats_of(self->state); },
  };
}

}  // namespace troupe
