#pragma once
// One process of an engine, as a front knows it: an engine keeps its index, and each of its processes has an
// epoch.
#include <cstdint>

namespace troupe {

struct EngineProcess {
  std::uint32_t engine = 0;  ///< index
  std::uint32_t epoch = 0;   ///< of its link, in which the process came; never 0

  bool operator==(const EngineProcess&) const = default;
};

}  // namespace troupe
