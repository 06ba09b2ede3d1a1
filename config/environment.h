#pragma once
// FastDeploy's environment variables that are not flags here, and what each of them does.
#include <span>
#include <string_view>

namespace troupe::config {

enum class Effect {
  obeyed,   ///< a library or the operating system reads it
  ignored,  ///< one warning line: it changes neither answers nor memory here
  refused,  ///< exit code 3: ignoring it would change answers
};

struct KnownVariable {
  std::string_view name;  ///< a trailing * stands for any ending
  Effect effect;
  std::string_view reason;
  std::string_view default_value = {};  ///< a value that means the same as unset
};

std::span<const KnownVariable> known_variables();

}  // namespace troupe::config
