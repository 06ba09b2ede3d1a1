#pragma once
// Numbers as fp8 codes by the rules of quantize.h, and their products in double precision.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/device_under_test.h"
#include "kernels/e4m3.h"
#include "kernels/matrix.h"
#include "kernels/quantise_rows.h"
#include "kernels/quantize.h"

namespace troupe::kernels {

inline constexpr WeightFormat kFp8{WeightKind::fp8, DType::bf16};

/// (outputs, inputs) numbers as codes, with a scale for `together` outputs × kFp8Block inputs: kFp8Block of
/// weights, 1 of activations.
struct Coded {
  int inputs, together, blocks;
  std::vector<std::uint8_t> codes;  // (outputs, inputs)
  std::vector<float> scales;        // (outputs / together, blocks)

  Coded(int outputs, int inputs, int together, const std::vector<float>& numbers)
      : inputs(inputs), together(together), blocks(coded_blocks(inputs)), codes(numbers.size()) {
    for (int first = 0; first < outputs; first += together) {
      for (int begin = 0; begin < inputs; begin += kFp8Block) {
        const int last = std::min(outputs, first + together), end = std::min(inputs, begin + kFp8Block);
        float largest = 0;
        for (int o = first; o < last; ++o) {
          for (int i = begin; i < end; ++i) largest = larger_magnitude(largest, numbers[index(o, i)]);
        }
        const float scale = scale_for(kFp8, largest);
        scales.push_back(scale);
        for (int o = first; o < last; ++o) {
          for (int i = begin; i < end; ++i) codes[index(o, i)] = fp8_code_of(numbers[index(o, i)], scale);
        }
      }
    }
  }
  std::size_t index(int o, int i) const { return std::size_t(o) * std::size_t(inputs) + std::size_t(i); }
  float scale(int o, int block) const { return scales[std::size_t(o / together * blocks + block)]; }
  double code(int o, int i) const { return double(e4m3_to_float(codes[index(o, i)])); }
};

/// Row r of x times row o of the weights; `size` gets the sum of the magnitudes.
inline double dot(const Coded& weights, int o, const Coded& x, int r, double& size) {
  double sum = 0;
  size = 0;
  for (int b = 0; b < weights.blocks; ++b) {
    const double factor = double(x.scale(r, b)) * double(weights.scale(o, b));
    for (int i = b * kFp8Block; i < std::min(weights.inputs, (b + 1) * kFp8Block); ++i) {
      const double product = weights.code(o, i) * x.code(r, i) * factor;
      sum += product;
      size += std::abs(product);
    }
  }
  return sum;
}

inline bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// Some magnitudes apart, with zeros, ties of e4m3 and a block of zeros.
inline std::vector<float> numbers_of(int rows, int columns, DType dtype, unsigned seed) {
  std::vector<float> numbers = random_floats(std::size_t(rows) * std::size_t(columns), seed, 0.05f);
  std::mt19937 random(seed);
  for (float& v : numbers) {
    if (random() % 50 == 0) v *= 100;
    if (random() % 20 == 0) v = random() % 2 == 0 ? 0.0f : -0.0f;
    v = rounded_to(dtype, v);
  }
  for (int i = 0; i < std::min(columns, kFp8Block); ++i) {
    numbers[std::size_t(i)] = rounded_to(dtype, i == 0 ? 448.0f : 1.0f + float(i) / 16);
    if (rows > 1) numbers[std::size_t(columns + i)] = 0;
  }
  return numbers;
}

}  // namespace troupe::kernels
