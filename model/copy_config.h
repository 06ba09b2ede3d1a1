#pragma once
// quantization_config of a quantised copy.
#include <nlohmann/json.hpp>

#include "model/checkpoint/model_files.h"

namespace troupe::model {

/// What says how the linears are stored, of files whose formats are those of the copy: compressed-tensors',
/// that of fp8 checkpoints, or with wint2 and W4A8 FastDeploy's.
nlohmann::ordered_json quantization_config(const ModelFiles& files);

}  // namespace troupe::model
