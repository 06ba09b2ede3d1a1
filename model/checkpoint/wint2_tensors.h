#pragma once
// The tensors of a linear in wint2 (CCQ), as FastDeploy's tools write them; kernels/wint2.h says what they
// mean.
#include <cstdint>

#include "base/status.h"
#include "gpu/cpu.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/tensor_map.h"

namespace troupe::model {

/// ok if they have the types and shapes of a linear of that size; else why not, to follow the name of the
/// linear's codes.
Status check_wint2_shapes(const FileTensor& codes, const FileTensor& groups, const Wint2Tensors& others,
                          std::int64_t outputs, std::int64_t inputs);

/// Reads the numbers of the source's outputs. invalid_argument names the tensor and the output: a number that
/// is a NaN, an infinity or zero where it multiplies, or a code word out of range. Otherwise how many outputs
/// have a byte whose code word depends on how the first product is rounded.
Result<int> check_wint2_numbers(Isa isa, const WeightSource& source);

}  // namespace troupe::model
