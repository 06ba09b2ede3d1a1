#pragma once
// The one list of flags. To add a setting: a member in options.h, a line in fields.cpp, and
// docs/options.md written anew (`troupe serve --help=markdown > docs/options.md`).
#include <vector>

#include "config/field.h"
#include "config/options.h"

namespace troupe::config {

/// Every setting, in the order of --help, pointing into `options`.
std::vector<Field> fields(Options& options);

std::vector<Field> http_fields(HttpOptions& options);
std::vector<Field> limit_fields(LimitOptions& options);
std::vector<Field> quantization_fields(QuantizationOptions& options);

/// The parts of the list that no module reads yet: for one server, and for several devices or servers.
std::vector<Field> later_fields(LaterOptions& later);
std::vector<Field> cluster_fields(LaterOptions& later);

}  // namespace troupe::config
