#pragma once
// Tells builds with checks that cost time (without NDEBUG) from those without them.
#include <cassert>

namespace troupe {

/// True in builds without NDEBUG. For `if constexpr`: release builds have no code for the other branch.
inline constexpr bool kDebugBuild = [] {
  bool checked = false;
  assert((checked = true));  // not evaluated with NDEBUG
  return checked;
}();

}  // namespace troupe
