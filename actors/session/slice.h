#pragma once
// The time that one turn of an actor may spend on an answer. What is left is written in later turns.
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace troupe {

class Slice {
 public:
  /// Without an end.
  Slice() = default;
  explicit Slice(std::int64_t until_ns) : until_ns_(until_ns) {}

  /// Asks the clock: once per few microseconds of work.
  bool over() const { return until_ns_ != std::numeric_limits<std::int64_t>::max() && now_ns() >= until_ns_; }

 private:
  std::int64_t until_ns_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace troupe
