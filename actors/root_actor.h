#pragma once
// ROOT: watches a list of actors and restarts them, or ends, as the list says. actors/topology.cpp fills it.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "actors/protocol.h"
#include "base/log.h"

namespace troupe {

enum class OnDown {
  restart,   ///< spawned again at once; its state is lost and its neighbours are told
  escalate,  ///< the engine ends with an error; the supervisor process starts a new one
};

/// One actor, in start order. Stop order is the reverse: each has ended before the next is told to end.
struct RootChild {
  std::string name;
  OnDown on_down = OnDown::escalate;
  caf::actor actor;
  std::function<caf::actor()> respawn;  ///< for OnDown::restart: spawns it and tells its neighbours
};

struct RootParts {
  std::vector<RootChild> children;
  Log log;
};

struct RootState {
  static inline const char* name = "root";
  RootParts parts;
  std::map<caf::actor_addr, std::size_t> index;  ///< of living children
  std::vector<std::int32_t> restarts;            ///< by child
  bool stopping = false;
  caf::error reason;
};

/// ROOT. Ends when asked to exit or when a child with OnDown::escalate dies, after all children.
root_actor::behavior_type root_behavior(root_actor::stateful_pointer<RootState> self, RootParts parts);

}  // namespace troupe
