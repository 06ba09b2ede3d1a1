#include "actors/supervisor/stop_sequence.h"

#include <signal.h>

namespace troupe::supervisor {
namespace {

/// How long a worker that loads may take to get so far that it hears.
constexpr Duration kLoadingGrace = std::chrono::milliseconds(500);

}  // namespace

bool StopSequence::advance(TimePoint now) {
  if (!loading_until_) ask_loading(now);
  for (; current_ < children_.all().size(); ++current_, kill_at_.reset()) {
    Child& child = children_.all()[current_];
    if (!child.running()) continue;
    if (!kill_at_) {
      const bool asked = child.kind == ChildKind::worker && child.asked_to_end;
      child.state = "stopping";
      if (!asked) ask_to_end(child);
      kill_at_ = asked ? *loading_until_ : now + grace_;
    }
    if (now >= *kill_at_) {
      children_.kill(child, "did not end when asked");
      kill_at_ = now + grace_;
    }
    return false;
  }
  return true;
}

// Nobody sends to them. They are many where there are many ranks, and hear nothing before their weights are
// loaded.
void StopSequence::ask_loading(TimePoint now) {
  loading_until_ = now + kLoadingGrace;
  for (Child& child : children_.all()) {
    if (child.kind == ChildKind::worker && child.running() && !child.ready) ask_to_end(child);
  }
}

// A front that is asked can still send its clients an error event. One that a drain asked before is killed:
// its time is over.
void StopSequence::ask_to_end(Child& child) {
  const nlohmann::json order = child.kind == ChildKind::front
                                   ? nlohmann::json{{"do", "drain"}, {"deadline_s", 0}}
                                   : nlohmann::json{{"do", "stop"}};
  if (child.asked_to_end || !child.control.open() || !child.control.send(order).ok())
    child.process.kill(SIGKILL);
  child.asked_to_end = true;
}

}  // namespace troupe::supervisor
