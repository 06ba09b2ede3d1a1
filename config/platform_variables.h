#pragma once
// Variables that a platform sets for a service, and not a person: Kubernetes gives every container
//   NAME_SERVICE_HOST, NAME_SERVICE_PORT, NAME_SERVICE_PORT_HTTP, NAME_PORT=tcp://10.0.0.1:80,
//   NAME_PORT_80_TCP, …
// for each service, and Docker's links do alike. A service named troupe sets TROUPE_PORT so.
#include <set>
#include <string>
#include <vector>

#include "config/field.h"
#include "config/parse.h"

namespace troupe::config {

/// The names in `environment` that a platform has set, whatever the service is called. A NAME_PORT whose
/// value is not an address (tcp://…) was set by a person.
std::set<std::string> platform_variables(const Environment& environment);

/// A sentence that names those of them that are named like options: that one of `fields` reads, or, with
/// `all`, that begin with TROUPE_ or FD_. Empty without one.
std::string platform_note(const Environment& environment, const std::vector<Field>& fields, bool all);

}  // namespace troupe::config
