#include "actors/root_actor.h"

#include <chrono>
#include <memory>

#include "base/clock.h"

namespace troupe {
namespace {

using RootSelf = root_actor::stateful_pointer<RootState>;

std::string text(RootSelf self, const caf::error& error) {
  return error ? self->system().render(error) : "it ended";
}

void watch(RootSelf self, std::size_t child) {
  self->monitor(self->state.parts.children[child].actor);
  self->state.index[self->state.parts.children[child].actor.address()] = child;
}

/// Tells the last living child to end, or ends itself when there is none.
void stop_next(RootSelf self) {
  auto& state = self->state;
  std::size_t last = 0;
  for (const auto& [address, child] : state.index) last = std::max(last, child + 1);
  if (last == 0) {
    self->quit(state.reason);
    return;
  }
  self->send_exit(state.parts.children[last - 1].actor, caf::exit_reason::user_shutdown);
}

void stop(RootSelf self, caf::error reason) {
  if (self->state.stopping) return;
  self->state.stopping = true;
  self->state.reason = std::move(reason);
  stop_next(self);
}

void child_down(RootSelf self, const caf::down_msg& down) {
  auto& state = self->state;
  const auto it = state.index.find(down.source);
  if (it == state.index.end()) return;
  const std::size_t child = it->second;
  state.index.erase(it);
  if (state.stopping) {
    stop_next(self);
    return;
  }
  RootChild& dead = state.parts.children[child];
  state.parts.log.error("actor_down", {kv("name", dead.name), kv("why", text(self, down.reason)),
                                       kv("then", dead.on_down == OnDown::restart ? "restart" : "escalate")});
  if (dead.on_down == OnDown::restart) {
    dead.actor = dead.respawn();
    ++state.restarts[child];
    watch(self, child);
  } else {
    stop(self, caf::make_error(caf::sec::runtime_error, dead.name + ": " + text(self, down.reason)));
  }
}

/// How long an actor may take to answer a Probe. A tokenizer that works on a long prompt takes longer and is
/// late.
constexpr auto kProbePatience = std::chrono::milliseconds(300);

/// The answers to one ProbeAll, while they come in.
struct ProbeRound {
  caf::typed_response_promise<ActorReports> promise;
  ActorReports reports;
  std::size_t open = 0;

  void settle() {
    if (--open == 0) promise.deliver(std::move(reports));
  }
};

caf::typed_response_promise<ActorReports> probe_all(RootSelf self) {
  const std::vector<RootChild>& children = self->state.parts.children;
  auto round = std::make_shared<ProbeRound>();
  round->promise = self->make_response_promise<ActorReports>();
  round->open = children.size();
  std::map<std::string, std::int32_t> numbers;
  const std::int64_t asked_ns = now_ns();
  for (std::size_t i = 0; i < children.size(); ++i) {
    ActorReport report;
    report.name = children[i].name;
    report.number = numbers[report.name]++;
    report.restarts = self->state.restarts[i];
    round->reports.actors.push_back(std::move(report));
    self->request(children[i].actor, kProbePatience, Probe{})
        .then(
            [round, i, asked_ns](const ProbeAnswer& answer) {
              ActorReport& own = round->reports.actors[i];
              own.answered = true;
              own.mailbox = answer.mailbox;
              own.answer_ns = now_ns() - asked_ns;
              round->settle();
            },
            [round, i, asked_ns](const caf::error&) {
              round->reports.actors[i].answer_ns = now_ns() - asked_ns;
              round->settle();
            });
  }
  return round->promise;
}

}  // namespace

root_actor::behavior_type root_behavior(RootSelf self, RootParts parts) {
  self->set_down_handler([self](const caf::down_msg& down) { child_down(self, down); });
  self->set_exit_handler([self](const caf::exit_msg& message) { stop(self, message.reason); });
  self->state.parts = std::move(parts);
  self->state.restarts.resize(self->state.parts.children.size());
  for (std::size_t i = 0; i < self->state.parts.children.size(); ++i) watch(self, i);
  return {
      answer_beat,
      [self](const ProbeAll&) { return probe_all(self); },
  };
}

}  // namespace troupe
