#pragma once
// Scales of a -Paddle checkpoint: those of W4A8 experts, which come in two forms, and their check.
//
//                     activation_scale               weight_scale
//   paddle_w4a8       1 / largest magnitude, "1/a"   finished: the factor of a sum of code · 16 code
//   paddle_w4a8_rows  a                              largest magnitude of the output's weights, "w";
//                                                    finished: w · a / (127 · 112), rounded to bf16
#include <vector>

#include "base/status.h"
#include "kernels/moe.h"
#include "model/checkpoint/tensor_map.h"

namespace troupe::model {

/// Of a source of W4A8 experts.
kernels::StaticInput static_input_of(const WeightSource& source);

/// The finished scales of its outputs.
std::vector<float> finished_scales(const WeightSource& source);

/// Reads every scale that stands beside quant_weights, and static scales of keys and values. The error names
/// the first that is not a positive number, or says that the activation_scales are not what is_permuted says:
/// their geometric mean is above 1 for largest magnitudes and below 1 for reciprocals.
Status check_static_scales(const TensorMap& map);

}  // namespace troupe::model
