#pragma once
#include <vector>

namespace troupe {

/// Descriptors of the front's ends of its sockets to `troupe media` processes, which stay open until the
/// front ends.
struct MediaSockets {
  std::vector<int> pictures;
  std::vector<int> videos;
};

}  // namespace troupe
