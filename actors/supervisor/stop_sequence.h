#pragma once
// The end of all children, one after the other, the front first, then the engine: none must vanish while
// another still sends to it. Each is asked to end, and killed when it has not ended after the grace. Workers
// and text processes that are still loading are asked first, all at once, and have half a second.
#include <cstddef>
#include <optional>

#include "actors/supervisor/children.h"
#include "base/clock.h"

namespace troupe::supervisor {

class StopSequence {
 public:
  StopSequence(Children& children, Duration grace) : children_(children), grace_(grace) {}

  /// Asks or kills the next child that is due. Call it when a child has ended and at deadline(). True when no
  /// child is left.
  bool advance(TimePoint now);

  /// When the child that was asked is killed; in the past when none was asked yet.
  TimePoint deadline() const { return kill_at_.value_or(TimePoint{}); }

 private:
  void ask_loading(TimePoint now);
  void ask_to_end(Child& child);

  Children& children_;
  Duration grace_;
  std::optional<TimePoint>
      loading_until_;                 // when workers that were loading are killed; unset: none was asked yet
  std::size_t current_ = 0;           // the child that is being stopped
  std::optional<TimePoint> kill_at_;  // unset: it has not been asked yet
};

}  // namespace troupe::supervisor
