#pragma once
// The callback that reports how much of the weights is loaded.
#include <cstdint>
#include <functional>

namespace troupe::model {

/// Called repeatedly while weights are loaded, on the loading thread: bytes loaded so far, and in all.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

}  // namespace troupe::model
