#pragma once
// Ids that an answer's parts get. They follow from the key of their sequence, so they are unique without
// being drawn.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace troupe {

/// `prefix` and 32 hex digits; different for every sequence and `index`.
std::string part_id(std::string_view prefix, const RequestKey& key, std::int32_t index);

}  // namespace troupe
