#pragma once
// Which images and videos may be submitted with a prompt.
#include <span>

#include "actors/messages.h"
#include "actors/scheduler/worker_limits.h"
#include "base/status.h"

namespace troupe {

/// invalid_argument if the worker sees nothing, an item is larger than what it can encode, or the items do
/// not lie one after the other on equal tokens before the prompt's last: that one is run again where a
/// sequence goes on from it, when the output of all items is gone. The prompt's length and ids have been
/// checked.
Status check_media(const SequenceSpec& spec, const WorkerLimits& worker);

/// Whether a worker can encode each of the items, which were allowed for another.
bool media_fit(std::span<const SequenceItem> items, const WorkerLimits& worker);

}  // namespace troupe
