#pragma once
// `troupe media --fd=N [--sandbox=on|off]`: the process that decodes pictures, one after another, until its
// socket closes. It holds nothing between two of them, so it may be killed at any time.
#include <string>
#include <vector>

namespace troupe::media {

/// Returns the process's exit code, or ends the process itself.
int media_main(const std::vector<std::string>& words);

/// Answers requests on `socket` until it closes. For a process that has limited itself.
void serve_pictures(int socket);

}  // namespace troupe::media
