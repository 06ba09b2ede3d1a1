#include "actors/engine/watchdog.h"

#include <algorithm>
#include <utility>

namespace troupe {

void Watchdog::watch(WatchdogPart part, Ask ask) {
  auto pulse = std::make_shared<Pulse>();
  pulse->beat();  // a count of 0 says that there is no part
  Watched watched;
  watched.part = std::move(part);
  watched.count = [pulse] { return pulse->beats(); };
  watched.ask = [pulse, ask = std::move(ask)] { ask(pulse); };
  parts_.push_back(std::move(watched));
}

void Watchdog::watch(WatchdogPart part, std::function<std::uint64_t()> count) {
  Watched watched;
  watched.part = std::move(part);
  watched.count = std::move(count);
  parts_.push_back(std::move(watched));
}

void Watchdog::check(TimePoint now) {
  const Duration since_last =
      checked_ == TimePoint{} ? Duration{} : std::min<Duration>(now - checked_, kAskPeriod);
  checked_ = now;
  for (Watched& one : parts_) {
    const std::uint64_t count = one.count();
    if (count != one.seen || count == 0) {
      one.seen = count;
      one.silence = {};
    } else {
      one.silence += since_last;
    }
    if (one.ask && now - one.asked >= (count != one.when_asked ? kAskPeriod : kAskAgain)) {
      one.when_asked = count;
      one.asked = now;
      one.ask();
    }
  }
}

}  // namespace troupe
