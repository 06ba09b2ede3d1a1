// For hosts without a pause instruction that is known here.
#include <atomic>

#include "base/pause.h"

namespace troupe {

void pause_cpu() { std::atomic_signal_fence(std::memory_order_seq_cst); }

}  // namespace troupe
