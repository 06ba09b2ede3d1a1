#include "model/checkpoint/static_scales.h"

#include <cmath>
#include <set>
#include <string>

#include "gpu/dtype.h"
#include "model/weight_target.h"

namespace troupe::model {
namespace {

constexpr float kLargestCodes = 127.0f * 112.0f;  // 112: the largest int4 code times 16
constexpr float kSumOfCodes = 16;

std::vector<float> all_numbers_of(const FileTensor& tensor) {
  return numbers_of(tensor, 0, static_cast<std::size_t>(tensor.bytes / size_of(tensor.type)));
}

bool holds_magnitudes(const WeightSource& source) {
  return source.stored->order == CodeOrder::paddle_w4a8_rows;
}

Status check_positive(const FileTensor& tensor, const std::string& what) {
  const std::vector<float> values = all_numbers_of(tensor);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && values[i] > 0) continue;
    return invalid(what + ", " + shape_text(tensor.shape) + ", has " + std::to_string(values[i]) +
                   " at place " + std::to_string(i) + "; scales are positive numbers.");
  }
  return {};
}

}  // namespace

kernels::StaticInput static_input_of(const WeightSource& source) {
  const float scale = numbers_of(*source.input_scale, 0, 1).front();
  return {holds_magnitudes(source) ? 127.0f / scale : 127.0f * scale, kSumOfCodes};
}

std::vector<float> finished_scales(const WeightSource& source) {
  std::vector<float> scales =
      numbers_of(*source.scales, source.first_scale, static_cast<std::size_t>(source.outputs));
  if (!holds_magnitudes(source)) return scales;
  const float largest = numbers_of(*source.input_scale, 0, 1).front();
  for (float& scale : scales) scale = bf16_to_float(float_to_bf16(scale * largest / kLargestCodes));
  return scales;
}

Status check_static_scales(const TensorMap& map) {
  std::set<const FileTensor*> seen;
  double logarithms = 0;
  int experts = 0;
  const WeightSource* w4a8 = nullptr;
  for (const WeightSource& source : map.sources) {
    if (source.weight == Weight::key_scale || source.weight == Weight::value_scale) {
      if (Status s = check_positive(*source.tensor, "The tensor '" + source.name + "'"); !s.ok()) return s;
    }
    // Numbers of wint2 are checked when they are read.
    if (!source.stored || source.stored->order == CodeOrder::rows || source.stored->wint2() ||
        !seen.insert(source.tensor).second)
      continue;
    if (Status s = check_positive(*source.scales, "The weight_scale of '" + source.name + "'"); !s.ok())
      return s;
    if (source.input_scale == nullptr) continue;
    if (Status s = check_positive(*source.input_scale, "The activation_scale of '" + source.name + "'");
        !s.ok())
      return s;
    logarithms += std::log(static_cast<double>(numbers_of(*source.input_scale, 0, 1).front()));
    ++experts;
    w4a8 = &source;
  }
  if (w4a8 == nullptr) return {};
  const double mean = std::exp(logarithms / experts);
  const bool magnitudes = holds_magnitudes(*w4a8);
  if (magnitudes == (mean > 1)) return {};
  return invalid("The activation_scales of the experts, as '" + w4a8->name + "', have a geometric mean of " +
                     std::to_string(mean) + ", so they are " +
                     (magnitudes ? "reciprocals" : "largest magnitudes") +
                     ", and by quantization_config is_permuted " + (magnitudes ? "false" : "true") +
                     " they are " + (magnitudes ? "largest magnitudes" : "reciprocals") +
                     "; set is_permuted to what the checkpoint's writer made.",
                 "is_permuted");
}

}  // namespace troupe::model
