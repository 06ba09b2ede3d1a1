#pragma once
// The limit on open files (RLIMIT_NOFILE), which children inherit. Accepting must never fail for want of
// descriptors: connections that only wait would then keep health probes out.
#include <string>

#include "base/status.h"
#include "config/options.h"

namespace troupe::supervisor {

/// Raises this process's soft limit to what max_connections needs. When the hard limit is lower than that,
/// max_connections is lowered to what fits, and the string is a sentence for people about it; else it is
/// empty. unavailable: hardly any connection would fit.
Result<std::string> raise_descriptor_limit(config::Options& options);

}  // namespace troupe::supervisor
