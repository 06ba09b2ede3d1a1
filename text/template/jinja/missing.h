#pragma once
// Names of Jinja's that a template uses and this engine lacks, found without rendering it.
#include <string>
#include <vector>

#include "text/template/jinja/parser.h"

namespace troupe::jinja {

/// Each name once, with its first line: "the filter 'truncate' (line 4)". Functions and methods only where
/// nothing that the template or its inputs define could be meant. Names that the template asks about first
/// are not missing.
std::vector<std::string> missing_names(const ParsedTemplate& parsed);

}  // namespace troupe::jinja
