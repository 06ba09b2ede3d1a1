#pragma once
// A compiled template.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/template/jinja/limits.h"
#include "text/template/jinja/parser.h"
#include "text/template/jinja/text.h"

#include <nlohmann/json.hpp>

namespace troupe::jinja {

/// A variable given to a template.
struct Input {
  std::string_view name;
  const nlohmann::ordered_json* value = nullptr;  ///< not null; outlives the call
  bool trusted = false;                           ///< whether all of its strings are trusted
};

/// The reason of a rendering that failed because a filter, test, function or method does not exist here.
inline constexpr std::string_view kMissingName = "template_name_missing";

/// Immutable; any number of threads may render at once.
class Template {
 public:
  /// invalid_argument with the line of a syntax error.
  static Result<std::shared_ptr<const Template>> compile(std::string_view source);

  /// The output with the trust of every byte. Throws nothing; a failed rendering frees all it made.
  Result<Text> render(const std::vector<Input>& inputs, const RenderLimits& limits) const;

  bool reads(std::string_view name) const { return parsed_.names.contains(name); }

  /// As missing_names() tells them.
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  explicit Template(ParsedTemplate parsed);
  const ParsedTemplate parsed_;
  const std::vector<std::string> missing_;
};

}  // namespace troupe::jinja
