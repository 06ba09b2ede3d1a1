#pragma once
// Checks what a sequence brings from an engine that has ended.
#include <cstdint>

#include "actors/messages.h"
#include "base/status.h"

namespace troupe {

/// Refuses what no engine can have left behind: output or scores at the first attempt, an output that has
/// ended or is not of this vocabulary, scores of other positions than the prompt's; and a sequence that has
/// no room for one more token.
Status check_resumption(const SequenceSpec& spec, std::uint32_t attempt, std::int32_t vocab_size,
                        std::int32_t max_length);

}  // namespace troupe
