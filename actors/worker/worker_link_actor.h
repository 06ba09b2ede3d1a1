#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "actors/protocol.h"
#include "base/log.h"
#include "ipc/link.h"

namespace troupe {

struct WorkerLinkParts {
  std::shared_ptr<ipc::UpperEnd> link;
  std::uint64_t spec_hash = 0;  ///< a worker that read another model is refused
  std::int32_t rank = 0;
  Log log;
  std::shared_ptr<Pulse> receiver_pulse =
      std::make_shared<Pulse>();  ///< beaten by the receiving thread, at least five times a second
};

struct WorkerLinkState {
  static inline const char* name = "worker_link";
  WorkerLinkParts parts;
  Attach consumers;
  rank_group_actor group;   ///< where several ranks run: hears instead of the consumers
  std::deque<Bytes> masks;  ///< for which there was no room on the ring, oldest first
  std::jthread receiver;    ///< the one thread that waits on the rings; ends with the actor
};

/// WORKER LINK. Its handlers send and never block; a thread of its own receives and forwards. A corrupt ring
/// or a worker with another model ends the actor, and with it the engine.
worker_link_actor::behavior_type worker_link_behavior(
    worker_link_actor::stateful_pointer<WorkerLinkState> self, WorkerLinkParts parts);

}  // namespace troupe
