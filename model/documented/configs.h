#pragma once
#include <span>
#include <string_view>

namespace troupe::model {

struct ShapeConfig {
  std::string_view name;  ///< a folder of bench/models
  std::string_view json;  ///< its config.json
};

std::span<const ShapeConfig> shape_configs();

}  // namespace troupe::model
