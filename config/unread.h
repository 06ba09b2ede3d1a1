#pragma once
// Values of flags that nothing reads. They have no member in options.h: a flag's row in config/fields_*.cpp
// gives its type and default, and its value is kept here, so that it is checked, shown and handed to child
// processes like any other.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe::config {

/// A switch that is neither on nor off by default.
struct UnsetSwitch {
  std::optional<bool> value;
};

/// A number of bytes.
struct UnreadBytes {
  std::int64_t value = 0;
};

/// A JSON object as its text; empty by default.
struct JsonObject {
  std::string text;
};

/// A flag's value. std::monostate: the flag has a member in options.h.
using UnreadValue = std::variant<std::monostate, bool, UnsetSwitch, int, std::int64_t, double, UnreadBytes,
                                 std::string, JsonObject, std::vector<int>, std::vector<std::string>>;

/// By the flag's name. fields() enters the defaults of those that are missing.
using UnreadValues = std::map<std::string, UnreadValue, std::less<>>;

/// The value of flag `name`, or what a T is without one if fields() has not been called for `values`.
template <class T>
T unread_value(const UnreadValues& values, std::string_view name) {
  const auto found = values.find(name);
  const T* value = found == values.end() ? nullptr : std::get_if<T>(&found->second);
  return value == nullptr ? T{} : *value;
}

}  // namespace troupe::config
