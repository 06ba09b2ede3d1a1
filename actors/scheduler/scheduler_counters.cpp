#include "actors/scheduler/scheduler_counters.h"

namespace troupe {

void SchedulerCounters::admitted(const ScheduledSequence& s, std::int32_t swapped) {
  ++since_step_.admitted;
  since_step_.admitted_hits += s.cached_tokens > 0 ? 1 : 0;
  since_step_.admitted_tokens += s.prompt_tokens;
  since_step_.cached_tokens += s.cached_tokens;
  since_step_.swapped_tokens += swapped;
  totals_.prompt_tokens += s.prompt_tokens;
  totals_.cached_tokens += s.cached_tokens;
  totals_.swapped_tokens += swapped;
}

}  // namespace troupe
