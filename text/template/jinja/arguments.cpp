#include "text/template/jinja/arguments.h"

#include <algorithm>

namespace troupe::jinja {

MatchedArguments::MatchedArguments(const char* function, const PassedArguments& arguments,
                                   std::initializer_list<std::string_view> names)
    : function_(function), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names.size()) {
    throw Error(std::string(function) + "() takes at most " + std::to_string(names.size()) +
                " arguments, got " + std::to_string(arguments.positional.size()));
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto known = std::find(names.begin(), names.end(), name);
    if (known == names.end()) throw Error(std::string(function) + "() has no argument named '" + name + "'");
    values_[static_cast<std::size_t>(known - names.begin())] = &value;
  }
}

const Value& MatchedArguments::required(std::size_t i) const {
  if (!values_[i]) throw Error(std::string(function_) + "() is missing an argument");
  return *values_[i];
}

const Text& MatchedArguments::text(std::size_t i) const {
  const Value& value = required(i);
  if (!value.text()) {
    throw Error(std::string(function_) + "() wants a string, got '" + value.type_name() + "'");
  }
  return *value.text();
}

const Text* MatchedArguments::optional_text(std::size_t i) const {
  return values_[i] && !values_[i]->is_none() ? &text(i) : nullptr;
}

std::int64_t MatchedArguments::integer(std::size_t i, std::int64_t fallback) const {
  if (!values_[i] || values_[i]->is_none()) return fallback;
  const auto [number, is_int] = values_[i]->as_int();
  if (!is_int)
    throw Error(std::string(function_) + "() wants an integer, got '" + values_[i]->type_name() + "'");
  return number;
}

}  // namespace troupe::jinja
