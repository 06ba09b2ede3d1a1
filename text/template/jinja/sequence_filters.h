#pragma once
// Filters over lists, dictionaries and characters; find_filter() searches these last.
#include <string_view>

#include "text/template/jinja/rendering.h"

namespace troupe::jinja {

Filter find_sequence_filter(std::string_view name);

}  // namespace troupe::jinja
