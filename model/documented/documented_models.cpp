#include "model/documented/documented_models.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "model/documented/configs.h"

namespace troupe::model {
namespace {

constexpr DocumentedModel kModels[] = {
    {"ERNIE-4.5-0.3B", "ERNIE-4.5-0.3B", 32'768, 128},
    {"ERNIE-4.5-21B-A3B", "ERNIE-4.5-21B-A3B", 32'768, 128},
    {"ERNIE-4.5-21B-A3B-Thinking", "ERNIE-4.5-21B-A3B", 131'072, 32},
    {"ERNIE-4.5-300B-A47B", "ERNIE-4.5-300B-A47B", 32'768, 128},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "ERNIE-4.5-VL-28B-A3B-Thinking", 32'768, 32},
};

std::string lower(std::string_view text) {
  std::string made;
  for (const char c : text) made += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return made;
}

}  // namespace

std::span<const DocumentedModel> documented_models() { return kModels; }

const DocumentedModel* find_documented(std::string_view name) {
  std::string wanted = lower(name);
  if (constexpr std::string_view kOwner = "baidu/"; wanted.starts_with(kOwner))
    wanted.erase(0, kOwner.size());
  for (const std::string_view form : {"-pt", "-paddle"}) {
    if (wanted.ends_with(form)) wanted.resize(wanted.size() - form.size());
  }
  const auto* const found = std::ranges::find_if(
      kModels, [&](const DocumentedModel& model) { return lower(model.name) == wanted; });
  return found == std::end(kModels) ? nullptr : found;
}

Result<ModelSpec> spec_of(const DocumentedModel& model) {
  for (const ShapeConfig& config : shape_configs()) {
    if (config.name == model.shape) return parse_spec(config.json, std::string(model.name));
  }
  return failure(Code::internal, "There is no config.json for " + std::string(model.name) + ".");
}

}  // namespace troupe::model
