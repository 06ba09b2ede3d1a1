#pragma once
// `troupe media --fd=N [--control-fd=M] [--sandbox=on|off] [--videos]`: the process that decodes pictures, or
// videos, one after another, until its socket closes. It holds nothing between two of them, so it may be
// killed at any time. To the supervisor, at M, it says once that it is ready, or why it is not.
#include <string>
#include <vector>

namespace troupe::media {

/// Returns the process's exit code, or ends the process itself.
int media_main(const std::vector<std::string>& words);

}  // namespace troupe::media
