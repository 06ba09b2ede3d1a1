#include "actors/supervisor/stop_sequence.h"

#include <signal.h>

namespace troupe::supervisor {
namespace {

/// How long a child that loads may take to get so far that it hears.
constexpr Duration kLoadingGrace = std::chrono::milliseconds(500);

/// Whether it loads before it hears anything, and nobody waits for what it holds.
bool may_load(const Child& child) { return child.kind == ChildKind::worker || child.kind == ChildKind::text; }

}  // namespace

bool StopSequence::advance(TimePoint now) {
  if (!loading_until_) ask_loading(now);
  for (; current_ < children_.all().size(); ++current_, kill_at_.reset()) {
    Child& child = children_.all()[current_];
    if (!child.running()) continue;
    if (!kill_at_) {
      const bool asked = may_load(child) && child.asked_to_end;
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

// They are many where there are many ranks.
void StopSequence::ask_loading(TimePoint now) {
  loading_until_ = now + kLoadingGrace;
  for (Child& child : children_.all()) {
    if (may_load(child) && child.running() && !child.ready) ask_to_end(child);
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
