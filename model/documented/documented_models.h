#pragma once
// The checkpoints whose deployment FastDeploy's pages document: their shapes, and the limits that the pages
// start them with. The shapes are the files bench/models/NAME/config.json, compiled in.
#include <span>
#include <string_view>

#include "base/status.h"
#include "model/checkpoint/spec.h"

namespace troupe::model {

struct DocumentedModel {
  std::string_view name;   ///< "ERNIE-4.5-21B-A3B-Thinking"
  std::string_view shape;  ///< the folder of bench/models whose config.json it has
  int max_model_len = 0;   ///< of the page's command, and so the next
  int max_num_seqs = 0;
};

std::span<const DocumentedModel> documented_models();

/// The model of that name, or null. Case, "baidu/", and "-PT" or "-Paddle" at the end do not matter.
const DocumentedModel* find_documented(std::string_view name);

/// Its shape.
Result<ModelSpec> spec_of(const DocumentedModel& model);

}  // namespace troupe::model
