#pragma once
// Which part of the engine has stood still, and for how long. A thread that no actor runs on asks every part
// for a beat four times a second and counts the answers: a part that works late answers late, a frozen one
// never.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/pulse.h"

namespace troupe {

/// Something that gives beats.
struct WatchdogPart {
  std::string name;
  bool in_engine = true;  ///< false: of another process
  Duration patience{};    ///< for a part that answers between its jobs: longer than any of them takes
};

struct Silence {
  /// A part that has not answered for so long stands still; a busy machine delays an answer by less.
  static constexpr Duration kStandsStill = std::chrono::milliseconds(1500);
  /// After so long without an answer the process gives no sign of life itself.
  static constexpr Duration kLate = std::chrono::milliseconds(600);

  const WatchdogPart* part = nullptr;  ///< lives as long as the Watchdog; null: there are no parts
  Duration time{};                     ///< beyond the part's patience

  bool late() const { return time >= kLate; }
  bool stands_still() const { return time >= kStandsStill; }
  /// The name of a part that stands still, else empty.
  std::string silent_part() const { return stands_still() ? part->name : std::string(); }
};

/// One thread.
class Watchdog {
 public:
  static constexpr Duration kAskPeriod = std::chrono::milliseconds(250);
  /// A part that has not answered for so long is asked again: it may be another one of the same name.
  static constexpr Duration kAskAgain = std::chrono::seconds(10);

  /// Asks a part to beat the pulse once. Must not wait for the part.
  using Ask = std::function<void(const std::shared_ptr<Pulse>&)>;
  void watch(WatchdogPart part, Ask ask);

  /// A part that beats unasked: its count rises at least four times a second, or is 0 while the part is not
  /// there.
  void watch(WatchdogPart part, std::function<std::uint64_t()> count);

  /// Forgets all parts and what asks them.
  void clear() { parts_.clear(); }

  /// Looks at every part and asks those that have answered. Call it at least twice in each kAskPeriod: time
  /// beyond one period between two calls does not count as silence, since who stops this thread has stopped
  /// the parts too.
  void check(TimePoint now);

  /// The part that has been silent the longest, as of the last check().
  Silence longest() const {
    return longest([](const WatchdogPart&) { return true; });
  }
  /// The same of this process's own parts.
  Silence longest_in_engine() const {
    return longest([](const WatchdogPart& part) { return part.in_engine; });
  }

 private:
  struct Watched {
    WatchdogPart part;
    std::function<std::uint64_t()> count;
    std::function<void()> ask;     // empty: the part beats unasked
    std::uint64_t seen = 0;        // its count at the last check
    std::uint64_t when_asked = 0;  // its count when it was asked last
    TimePoint asked{};
    Duration silence{};
  };

  template <class Counts>
  Silence longest(Counts&& counts) const {
    Silence out;
    for (const Watched& one : parts_) {
      const Duration time = std::max(one.silence - one.part.patience, Duration::zero());
      if (counts(one.part) && (out.part == nullptr || time > out.time)) out = {&one.part, time};
    }
    return out;
  }

  std::deque<Watched> parts_;  // which stay where they are
  TimePoint checked_{};
};

}  // namespace troupe
