#pragma once
#include <cstdint>
#include <functional>

namespace troupe::model {

/// Called now and then while weights are loaded, on the loading thread, with the bytes done and all of them.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

}  // namespace troupe::model
