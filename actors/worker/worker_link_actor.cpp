#include "actors/worker/worker_link_actor.h"

#include <pthread.h>

#include "actors/record_bytes.h"
#include "base/clock.h"

namespace troupe {
namespace {

using WorkerLinkSelf = worker_link_actor::stateful_pointer<WorkerLinkState>;

/// How long masks wait before there may be room: a worker that reads empties its ring in less.
constexpr auto kMasksWait = std::chrono::milliseconds(1);

/// Why this worker cannot be used, from its first record; empty when it can.
std::string refusal(const wire::Hello& hello, const WorkerLinkParts& parts) {
  if (hello.version != wire::kVersion) {
    return "the worker speaks version " + std::to_string(hello.version) + " of the wire format, the engine " +
           std::to_string(wire::kVersion);
  }
  if (hello.spec_hash != parts.spec_hash) return "the worker has read another model than the engine";
  if (hello.rank != parts.rank) return "the worker is rank " + std::to_string(hello.rank);
  return {};
}

/// Runs in the receiving thread and turns records into messages. It has the actor's handle only, not its
/// state.
class WorkerReceiver {
 public:
  WorkerReceiver(worker_link_actor actor, WorkerLinkParts parts)
      : actor_(std::move(actor)), parts_(std::move(parts)) {}

  void operator()(std::stop_token stop) {
    while (!stop.stop_requested()) {
      parts_.receiver_pulse->beat();
      const ipc::Received got = parts_.link->receive(Clock::now() + std::chrono::milliseconds(200));
      switch (got.kind) {
        case ipc::Received::Kind::timeout: break;
        case ipc::Received::Kind::record: forward(got.view); break;
        case ipc::Received::Kind::epoch_changed: down("the worker was restarted"); break;
        case ipc::Received::Kind::corrupt: broken("a ring holds no sound record"); return;
      }
    }
  }

 private:
  void forward(const wire::RecordView& view) {
    switch (view.header().kind) {
      case wire::RecordKind::hello: hello(view); break;
      case wire::RecordKind::step_result:
      case wire::RecordKind::step_end: caf::anon_send(actor_, StepDone{to_bytes(view.bytes())}); break;
      case wire::RecordKind::media_done: caf::anon_send(actor_, MediaReport{to_bytes(view.bytes())}); break;
      case wire::RecordKind::cache_done:
      case wire::RecordKind::inventory: caf::anon_send(actor_, CacheReport{to_bytes(view.bytes())}); break;
      default: broken("a record of an unexpected kind came up");
    }
  }

  void hello(const wire::RecordView& view) {
    const auto* record = view.as<wire::Hello>();
    const std::string why = record == nullptr ? "its first record is too short" : refusal(*record, parts_);
    if (!why.empty()) {
      broken(why);
      return;
    }
    const auto device = view.array(record->device);
    caf::anon_send(actor_, LinkUp{view.header().epoch, record->capacity,
                                  std::string(device.begin(), device.end()), record->memory});
  }

  void down(const std::string& why) {
    parts_.log.warning("link_down", {kv("rank", parts_.rank), kv("why", why)});
    caf::anon_send(actor_, LinkDown{why});
  }

  void broken(const std::string& why) {
    parts_.log.error("link_broken", {kv("rank", parts_.rank), kv("why", why)});
    caf::anon_send(actor_, LinkBroken{why});
  }

  worker_link_actor actor_;
  WorkerLinkParts parts_;
};

void send(WorkerLinkSelf self, ipc::Channel channel, const Bytes& record) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(record.data()), record.size());
  if (self->state.parts.link->try_send(channel, bytes)) return;
  // The rings have space for all records that may be in flight: a full one means that the worker reads
  // nothing.
  self->state.parts.log.error("ring_full", {kv("channel", channel == ipc::Channel::step ? "step" : "cache")});
  self->quit(caf::make_error(caf::sec::runtime_error, "a ring to the worker is full"));
}

/// Sends masks in the order of their arrival. They take at most half of the ring, so that a plan always finds
/// room; what has none waits here. SCHEDULER's plans in flight bound how much that is.
void send_masks(WorkerLinkSelf self) {
  std::deque<Bytes>& masks = self->state.masks;
  ipc::UpperEnd& link = *self->state.parts.link;
  const std::size_t for_plans = link.capacity(ipc::Channel::step) / 2;
  while (!masks.empty()) {
    if (!link.try_send(ipc::Channel::step, std::as_bytes(std::span(masks.front())), for_plans)) {
      self->delayed_send(self, kMasksWait, RetryMasks{});
      return;
    }
    masks.pop_front();
  }
}

/// A record that no ring can hold is a fault of GRAMMAR's.
void take_masks(WorkerLinkSelf self, Bytes record) {
  if (record.size() > self->state.parts.link->max_record(ipc::Channel::step)) {
    self->quit(caf::make_error(caf::sec::runtime_error, "masks are longer than a record"));
    return;
  }
  std::deque<Bytes>& masks = self->state.masks;
  masks.push_back(std::move(record));
  if (masks.size() == 1) send_masks(self);  // otherwise a RetryMasks is on its way
}

void begin_receiving(WorkerLinkSelf self) {
  self->state.receiver = std::jthread(WorkerReceiver(self, self->state.parts));
  ::pthread_setname_np(self->state.receiver.native_handle(), "worker_link");
}

}  // namespace

worker_link_actor::behavior_type worker_link_behavior(WorkerLinkSelf self, WorkerLinkParts parts) {
  answer_probes(self);
  self->state.parts = std::move(parts);
  return {
      answer_beat,
      [self](const Attach& consumers) {
        self->state.consumers = consumers;
        begin_receiving(self);
      },
      [self](const Join& join) {
        self->state.group = join.group;
        begin_receiving(self);
      },
      [self](const SendPlan& plan) { send(self, ipc::Channel::step, plan.record); },
      [self](const SendMedia& media) { send(self, ipc::Channel::step, media.record); },
      [self](SendMasks& masks) { take_masks(self, std::move(masks.record)); },
      [self](const RetryMasks&) { send_masks(self); },
      [self](const SendCacheCommand& command) { send(self, ipc::Channel::cache, command.record); },
      [self](StepDone& done) {
        const WorkerLinkState& state = self->state;
        if (state.group)
          return self->send(state.group, RankStepDone{state.parts.rank, std::move(done.record)});
        self->send(state.consumers.scheduler, std::move(done));
      },
      [self](MediaReport& report) {
        const WorkerLinkState& state = self->state;
        if (state.group)
          return self->send(state.group, RankMediaReport{state.parts.rank, std::move(report.record)});
        self->send(state.consumers.scheduler, std::move(report));
      },
      [self](CacheReport& report) {
        const WorkerLinkState& state = self->state;
        if (state.group)
          return self->send(state.group, RankCacheReport{state.parts.rank, std::move(report.record)});
        self->send(state.consumers.cache, std::move(report));
      },
      [self](const LinkUp& up) {
        const WorkerLinkParts& parts = self->state.parts;
        parts.log.info("link_up", {kv("rank", parts.rank), kv("epoch", up.epoch), kv("device", up.device),
                                   kv("kv_blocks", up.capacity.kv_blocks)});
        if (self->state.group) return self->send(self->state.group, RankUp{parts.rank, up});
        // CACHE first: it must know its number of blocks before SCHEDULER asks for one.
        self->send(self->state.consumers.cache, up);
        self->send(self->state.consumers.scheduler, up);
        for (const auto& front : self->state.consumers.fronts) self->send(front, up);
      },
      [self](const LinkDown& down) {
        self->state.masks.clear();  // of an epoch that has passed
        if (self->state.group)
          return self->send(self->state.group, RankDown{self->state.parts.rank, down.why});
        for (const auto& front : self->state.consumers.fronts) self->send(front, down);
        self->send(self->state.consumers.scheduler, down);
      },
      [self](const LinkBroken& broken) { self->quit(caf::make_error(caf::sec::runtime_error, broken.why)); },
  };
}

}  // namespace troupe
