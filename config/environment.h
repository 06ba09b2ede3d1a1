#pragma once
// FastDeploy's environment variables that are not flags here: each is known, and says what it does.
#include <span>
#include <string_view>

namespace troupe::config {

enum class Effect {
  obeyed,   ///< by a library or the operating system, without our doing
  ignored,  ///< one warning line: neither answers nor memory depend on it here
  refused,  ///< exit code 3: ignoring it would change answers
};

struct KnownVariable {
  std::string_view name;  ///< a trailing * stands for any ending
  Effect effect;
  std::string_view reason;
  std::string_view default_value = {};  ///< a value that asks for nothing, besides the empty one
};

std::span<const KnownVariable> known_variables();

}  // namespace troupe::config
