#pragma once
#include <optional>
#include <vector>

#include "actors/protocol.h"
#include "actors/worker/rank_group.h"
#include "base/log.h"

namespace troupe {

struct RankGroupParts {
  std::vector<workers_actor> links;  ///< by rank; at least two
  Log log;
};

struct RankGroupState {
  static inline const char* name = "rank_group";
  RankGroupParts parts;
  std::optional<RankGroup> group;  ///< set in the behaviour
  Attach consumers;
};

/// RANK GROUP. Ranks that contradict each other end the actor, and with it the engine.
rank_group_actor::behavior_type rank_group_behavior(rank_group_actor::stateful_pointer<RankGroupState> self,
                                                    RankGroupParts parts);

}  // namespace troupe
