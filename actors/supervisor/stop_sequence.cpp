#include "actors/supervisor/stop_sequence.h"

#include <signal.h>

namespace troupe::supervisor {

bool StopSequence::advance(TimePoint now) {
  for (; current_ < children_.all().size(); ++current_, kill_at_.reset()) {
    Child& child = children_.all()[current_];
    if (!child.running()) continue;
    if (!kill_at_) {
      child.state = "stopping";
      ask_to_end(child);
      kill_at_ = now + grace_;
    } else if (now >= *kill_at_) {
      children_.kill(child, "did not end when asked");
      kill_at_ = now + grace_;
    }
    return false;
  }
  return true;
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
