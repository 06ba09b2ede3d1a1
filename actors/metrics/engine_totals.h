#pragma once
// What several engines say of themselves, as if they were one.
#include "actors/observation_messages.h"

namespace troupe {

void add_to(CacheStatus& sum, const CacheStatus& engine);
void add_to(SchedulerStatus& sum, const SchedulerStatus& engine);

}  // namespace troupe
