#pragma once
// A compiled template and the one way to run it.
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
  bool trusted = false;                           ///< all of its strings
};

/// Immutable and free of any tie to a thread: any number of renderings may run at once.
class Template {
 public:
  /// invalid_argument with the line for what is not a template.
  static Result<std::shared_ptr<const Template>> compile(std::string_view source);

  /// The output with the trust of every byte. No exception leaves; a failed rendering leaves nothing behind.
  Result<Text> render(const std::vector<Input>& inputs, const RenderLimits& limits) const;

  bool reads(std::string_view name) const { return parsed_.names.contains(name); }

 private:
  explicit Template(ParsedTemplate parsed) : parsed_(std::move(parsed)) {}
  const ParsedTemplate parsed_;
};

}  // namespace troupe::jinja
