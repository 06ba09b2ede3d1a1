#pragma once
// How long a step may run on the GPU before it counts as hanging.
#include <array>
#include <cstddef>

#include "base/clock.h"

namespace troupe::model {

enum class StepKind : std::size_t {
  decode,  ///< one token of each sequence
  prompt,  ///< all others
};

/// 20 times the 99th percentile of the last 256 steps of the kind, and at least `least`; `unknown` while
/// fewer than 8 have ended. Pure: durations are arguments.
class StepLimits {
 public:
  static constexpr Duration kLeast = std::chrono::seconds(5);
  static constexpr int kTimes = 20;

  explicit StepLimits(Duration unknown, Duration least = kLeast)
      : least_(least), kinds_{History{.limit = unknown}, History{.limit = unknown}} {}

  /// A step has ended after so long.
  void ended(StepKind kind, Duration took);
  Duration limit(StepKind kind) const { return kinds_[static_cast<std::size_t>(kind)].limit; }

 private:
  static constexpr std::size_t kKept = 256;
  static constexpr std::size_t kEnough = 8;
  struct History {
    std::array<Duration, kKept> took{};
    std::size_t count = 0;  // of all that have ended
    Duration limit{};
  };
  Duration least_;
  std::array<History, 2> kinds_;
};

}  // namespace troupe::model
