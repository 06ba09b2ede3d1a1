#pragma once
#include <string>
#include <vector>

namespace troupe::remote {

/// `troupe relay`: beside a front, the connection to one engine on another machine; beside an engine that
/// `troupe engine --listen` has started, those of its fronts. Returns the exit code.
int relay_main(const std::vector<std::string>& arguments);

}  // namespace troupe::remote
