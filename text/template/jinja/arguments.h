#pragma once
// Arguments matched to the parameters of a filter, a test, a method or a function of the engine.
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/template/jinja/error.h"
#include "text/template/jinja/value.h"

namespace troupe::jinja {

class MatchedArguments {
 public:
  /// Throws Error for an argument too many or of an unknown name.
  MatchedArguments(const char* function, const PassedArguments& arguments, std::initializer_list<std::string_view> names);

  /// nullptr when the caller gave none.
  const Value* get(std::size_t i) const { return values_[i]; }

  const Value& required(std::size_t i) const;
  const Text& text(std::size_t i) const;  ///< required
  std::int64_t integer(std::size_t i, std::int64_t fallback) const;
  bool boolean(std::size_t i, bool fallback) const { return values_[i] ? values_[i]->truthy() : fallback; }

  /// nullptr when left out or none.
  const Text* optional_text(std::size_t i) const;

 private:
  const char* function_;
  std::vector<const Value*> values_;
};

}  // namespace troupe::jinja
