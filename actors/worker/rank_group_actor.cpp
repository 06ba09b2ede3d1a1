#include "actors/worker/rank_group_actor.h"

#include <utility>

namespace troupe {
namespace {

using RankGroupSelf = rank_group_actor::stateful_pointer<RankGroupState>;

template <class Message>
void tell_all(RankGroupSelf self, const Message& message) {
  for (const workers_actor& link : self->state.parts.links) self->send(link, message);
}

void give_up(RankGroupSelf self, const std::string& why) {
  self->state.parts.log.error("ranks_disagree", {kv("why", why)});
  self->quit(caf::make_error(caf::sec::runtime_error, why));
}

void tell(RankGroupSelf self, RankGroup::Change change) {
  const Attach& consumers = self->state.consumers;
  if (!change.fault.empty()) return give_up(self, change.fault);
  if (change.down) {
    self->state.parts.log.warning("group_down", {kv("why", *change.down)});
    for (const auto& front : consumers.fronts) self->send(front, LinkDown{*change.down});
    self->send(consumers.scheduler, LinkDown{*change.down});
  }
  if (change.up) {
    self->state.parts.log.info("group_up", {kv("epoch", change.up->epoch), kv("device", change.up->device),
                                            kv("kv_blocks", change.up->capacity.kv_blocks)});
    // CACHE first, as from WORKER LINK.
    self->send(consumers.cache, *change.up);
    self->send(consumers.scheduler, *change.up);
    for (const auto& front : consumers.fronts) self->send(front, *change.up);
  }
}

}  // namespace

rank_group_actor::behavior_type rank_group_behavior(RankGroupSelf self, RankGroupParts parts) {
  answer_probes(self);
  self->state.group.emplace(static_cast<int>(parts.links.size()));
  self->state.parts = std::move(parts);
  return {
      answer_beat,
      [self](const Attach& consumers) { self->state.consumers = consumers; },
      [self](const SendPlan& plan) { tell_all(self, plan); },
      [self](const SendMedia& media) { tell_all(self, media); },
      [self](const SendMasks& masks) { tell_all(self, masks); },
      [self](const SendCacheCommand& command) { tell_all(self, command); },
      [self](RankStepDone& done) {
        RankGroup::Outcome outcome = self->state.group->step(done.rank, std::move(done.record));
        if (!outcome.fault.empty()) return give_up(self, outcome.fault);
        if (outcome.record) self->send(self->state.consumers.scheduler, StepDone{*std::move(outcome.record)});
      },
      [self](RankMediaReport& report) {
        RankGroup::Outcome outcome = self->state.group->media(report.rank, std::move(report.record));
        if (!outcome.fault.empty()) return give_up(self, outcome.fault);
        if (outcome.record) {
          self->send(self->state.consumers.scheduler, MediaReport{*std::move(outcome.record)});
        }
      },
      [self](RankCacheReport& report) {
        RankGroup::Outcome outcome = self->state.group->cache(report.rank, std::move(report.record));
        if (!outcome.fault.empty()) return give_up(self, outcome.fault);
        if (outcome.record) self->send(self->state.consumers.cache, CacheReport{*std::move(outcome.record)});
      },
      [self](RankUp& up) { tell(self, self->state.group->up(up.rank, std::move(up.link))); },
      [self](const RankDown& down) {
        tell(self, self->state.group->down(down.rank, "rank " + std::to_string(down.rank) + ": " + down.why));
      },
  };
}

}  // namespace troupe
