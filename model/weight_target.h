#pragma once
// Where a weight of a checkpoint goes.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/pack.h"
#include "model/checkpoint/tensor_map.h"
#include "model/weights.h"

namespace troupe::model {

/// The part of a matrix that one weight fills, or a vector of fp32.
struct WeightTarget {
  kernels::Matrix matrix{};
  kernels::Place place = kernels::Place::rows;
  int first = 0;
  float* vector = nullptr;  ///< instead of the matrix
};

WeightTarget target_of(const WeightLayout& layout, const ModelSpec& spec, Weight weight, int layer,
                       int expert = WeightSource::kNoExpert);

/// Where the static scale of a W4A8 source's rows goes; null: it has none, or gate has brought it for up.
kernels::StaticInput* static_input_target(const WeightLayout& layout, const WeightSource& source);

DType dtype_of(FileType type);

/// `count` numbers of a tensor from its element `first` on; a float type.
std::vector<float> numbers_of(const FileTensor& tensor, std::int64_t first, std::size_t count);

/// In the scales' file, where the first scale of a source that is quantised already lies.
std::uint64_t scale_offset_of(const WeightSource& source);

/// Reads all numbers of a source, or all scales of one that is quantised already, of fp8 the codes too; false
/// when one is a NaN or an infinity.
bool all_finite(const WeightSource& source);

}  // namespace troupe::model
