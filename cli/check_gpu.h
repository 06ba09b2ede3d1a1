#pragma once
// Starts the processes that check a GPU's kernels.
#include "model/card_check/check_card.h"

namespace troupe::cli {

/// By this very program.
model::StartChecks start_gpu_checks();

}  // namespace troupe::cli
