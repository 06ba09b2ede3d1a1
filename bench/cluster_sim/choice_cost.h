#pragma once
// What the choice of an engine costs the front: processor time of EngineRouter::choose().
#include <cstdint>

namespace troupe::bench {

struct ChoiceCost {
  double choose_ns = 0;  ///< a choice, with the names of the prompt's blocks; no table is read
  double refresh_us =
      0;  ///< a choice that reads the tables of all engines first, of which nothing has changed
};

/// At `engines` engines whose tables have `blocks` names each, of the most popular prefixes in turn, for
/// `choices` requests of the simulated load.
ChoiceCost measure_choices(std::uint32_t engines, std::int32_t blocks, std::uint32_t choices);

}  // namespace troupe::bench
