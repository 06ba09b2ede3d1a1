#include "actors/scheduler/steps_in_flight.h"

#include <algorithm>

namespace troupe {

void StepsInFlight::attach(std::int32_t most) {
  steps_.resize(static_cast<std::size_t>(most));
  first_ = size_ = 0;
  next_ = 1;
}

PlannedStep& StepsInFlight::begin() {
  PlannedStep& step = steps_[(first_ + size_) % steps_.size()];
  step.rows.clear();
  step.prompt_positions = step.decodes = step.drafts = 0;
  step.freed_media_tokens = 0;
  return step;
}

std::uint64_t StepsInFlight::push() {
  ++size_;
  return next_++;
}

const PlannedStep& StepsInFlight::pop() {
  const PlannedStep& step = steps_[first_];
  first_ = (first_ + 1) % steps_.size();
  --size_;
  return step;
}

bool StepsInFlight::has_only(std::uint32_t sequence) const {
  for (std::size_t k = 0; k < size_; ++k) {
    const std::vector<PlannedRow>& rows = steps_[(first_ + k) % steps_.size()].rows;
    const auto is_other = [&](const PlannedRow& row) { return row.sequence != sequence; };
    if (std::any_of(rows.begin(), rows.end(), is_other)) return false;
  }
  return true;
}

}  // namespace troupe
