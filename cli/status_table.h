#pragma once
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe::cli {

/// The supervisor's status object (what `troupe status --json` prints) as a table for people. Members that
/// are missing are shown as "-"; an error only when the text is no JSON object.
Result<std::string> status_table(std::string_view json);

}  // namespace troupe::cli
