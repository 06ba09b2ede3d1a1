// The processes that take tokens: which of them is behind, and which SESSION HOSTs they have.
#include <algorithm>

#include "actors/scheduler/scheduler.h"

namespace troupe {

void Scheduler::hold(std::uint32_t front, bool on) {
  if (on == is_held(front)) return;
  if (on) {
    held_fronts_.push_back(front);
  } else {
    std::erase(held_fronts_, front);
  }
  for (std::uint32_t i = 0; i < table_.places(); ++i) {
    if (table_[i].live && table_[i].front == front) table_[i].held = on;
  }
}

void Scheduler::drop_front(std::uint32_t front) {
  std::erase(held_fronts_, front);
  for (std::uint32_t i = 0; i < table_.places(); ++i) {
    if (table_[i].live && table_[i].front == front) end(i, SequenceState::ending);
  }
  for (Destination& one : destinations_) one.used &= one.front != front;
}

bool Scheduler::is_held(std::uint32_t front) const {
  return std::find(held_fronts_.begin(), held_fronts_.end(), front) != held_fronts_.end();
}

/// The index of StepOutput::hosts for this SESSION HOST. Those of dropped fronts are used again: a cancelled
/// sequence reports nothing.
std::uint32_t Scheduler::destination(std::uint32_t front, std::uint32_t host) {
  const auto is_it = [&](const Destination& one) {
    return one.used && one.front == front && one.host == host;
  };
  auto at = std::find_if(destinations_.begin(), destinations_.end(), is_it);
  if (at == destinations_.end()) {
    at = std::find_if(destinations_.begin(), destinations_.end(),
                      [](const Destination& one) { return !one.used; });
    if (at == destinations_.end()) at = destinations_.insert(at, Destination{});
    *at = {front, host, true};
  }
  return static_cast<std::uint32_t>(at - destinations_.begin());
}

}  // namespace troupe
