#pragma once
// Follows the logs of several actors: new lines in the order of their times, also after a file was rotated.
#include <functional>
#include <string>
#include <vector>

#include "base/log_options.h"
#include "cli/log_merge.h"

namespace troupe::cli {

/// Calls `each` for the lines behind the positions, which are those of `actors` in their order, until
/// `going_on` is false. A line comes 0.3 s after its time, so that lines of other actors that are older can
/// be put before it.
void follow_logs(const std::vector<std::string>& actors, const LogOptions& options,
                 const std::vector<LogPosition>& positions,
                 const std::function<void(const std::string& line)>& each,
                 const std::function<bool()>& going_on);

}  // namespace troupe::cli
