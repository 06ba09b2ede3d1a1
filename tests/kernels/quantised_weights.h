#pragma once
// Quantised matrices as the tests know them: rules and order written down a second time, from the text of
// kernels/quantize.h, kernels/cpu/quantiser.h and kernels/cpu/tile_quantised.h, in plain loops.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/device_under_test.h"

namespace troupe::kernels {

inline double nearest_even(double x) {
  const double below = std::floor(x), distance = x - below;
  if (distance != 0.5) return distance < 0.5 ? below : below + 1;
  return std::fmod(below, 2) == 0 ? below : below + 1;
}

/// The first five significant bits; not of subnormals.
inline float first_five_bits(float x) {
  if (!std::isfinite(x) || x == 0) return x;
  int exponent = 0;
  const double fraction = std::frexp(double(x), &exponent);  // 0.5 … 1
  return float(std::ldexp(std::floor(std::ldexp(fraction, 5)), exponent - 5));
}

struct Codes {
  std::vector<int> codes;
  std::vector<float> scales;  ///< one for each group
};

/// One output's numbers.
inline Codes quantised(const WeightFormat& format, const std::vector<float>& numbers) {
  const int most = format.kind == WeightKind::int4 ? 7 : 127;
  const std::size_t group = format.group == 0 ? numbers.size() : std::size_t(format.group);
  Codes result;
  for (std::size_t first = 0; first < numbers.size(); first += group) {
    const std::size_t last = std::min(numbers.size(), first + group);
    float largest = 0;
    for (std::size_t i = first; i < last; ++i) {
      if (!std::isfinite(numbers[i])) largest = std::nanf("");
      if (std::abs(numbers[i]) > largest) largest = std::abs(numbers[i]);
    }
    float scale = largest / float(most);
    if (format.group != 0) scale = first_five_bits(scale);
    result.scales.push_back(scale);
    for (std::size_t i = first; i < last; ++i) {
      double code = 0;
      if (scale > 0) {
        const volatile float quotient = numbers[i] / scale;
        code = nearest_even(double(quotient));
      }
      result.codes.push_back(int(code > most ? most : code < -most ? -most : code));
    }
  }
  return result;
}

/// Row of x: int8 codes with a scale for 32.
inline Codes quantised_row(const std::vector<float>& x) {
  Codes result;
  for (std::size_t first = 0; first < x.size(); first += 32) {
    const auto part =
        std::vector<float>(x.begin() + long(first), x.begin() + long(std::min(x.size(), first + 32)));
    const Codes some = quantised({WeightKind::int8, DType::f32}, part);
    result.codes.insert(result.codes.end(), some.codes.begin(), some.codes.end());
    result.scales.push_back(some.scales.front());
  }
  return result;
}

/// Reads a packed matrix of the Cpu.
class Packed {
 public:
  explicit Packed(const Matrix& m) : m_(m), width_(padded_inputs(m.format, m.inputs)) {}

  int code(int output, int input) const {
    const auto* bytes = static_cast<const std::uint8_t*>(m_.data);
    const std::size_t panel = std::size_t(output / 32) * 32 * std::size_t(width_),
                      lane = std::size_t(output % 32);
    const auto i = std::size_t(input);
    if (m_.format.kind == WeightKind::int8) return bytes[panel + i / 4 * 128 + lane * 4 + i % 4] - 128;
    const std::uint8_t both = bytes[panel / 2 + i / 8 * 128 + lane * 4 + i % 4];
    return (i % 8 < 4 ? both & 15 : both >> 4) - 8;
  }
  float scale(int output, int group) const {
    const auto* behind =
        static_cast<const std::byte*>(m_.data) + weight_bytes(m_.format, m_.outputs, m_.inputs);
    if (m_.format.group == 0) return reinterpret_cast<const float*>(behind)[output];
    const int groups = width_ / m_.format.group;
    return bf16_to_float(
        reinterpret_cast<const std::uint16_t*>(behind)[(output / 32 * groups + group) * 32 + output % 32]);
  }
  int group_of(int input) const { return m_.format.group == 0 ? 0 : input / m_.format.group; }
  double weight(int output, int input) const {
    return double(code(output, input)) * double(scale(output, group_of(input)));
  }

 private:
  const Matrix m_;
  const int width_;
};

inline std::vector<WeightFormat> quantised_formats(DType activations) {
  std::vector<WeightFormat> formats{{WeightKind::int8, activations}};
  for (const int group : {0, 32, 64, 128}) formats.push_back({WeightKind::int4, activations, group});
  return formats;
}

/// A packed weight made from floats.
struct QuantisedWeight {
  QuantisedWeight(DeviceUnderTest& device, const WeightFormat& format, int outputs, int inputs,
                  const std::vector<float>& values)
      : memory(device, matrix_bytes(format, outputs, inputs)), matrix{memory.as(), format, outputs, inputs} {
    run(device,
        Pack{.into = matrix, .source = values.data(), .source_dtype = DType::f32, .outputs = outputs});
  }
  Memory memory;
  Matrix matrix;
};

/// W[output] · x with x quantised, in double precision; `size` becomes the sum of the magnitudes.
inline double quantised_dot(const Packed& weight, int output, const Codes& x, double& size) {
  double sum = 0;
  size = 0;
  for (std::size_t i = 0; i < x.codes.size(); ++i) {
    const double product = weight.weight(output, int(i)) * double(x.scales[i / 32]) * x.codes[i];
    sum += product;
    size += std::abs(product);
  }
  return sum;
}

inline std::vector<float> row_of(const Rows& rows, int r) {
  std::vector<float> values;
  for (int c = 0; c < rows.cols(); ++c) values.push_back(rows.at(r, c));
  return values;
}

}  // namespace troupe::kernels
