// The encoder of wint2: the error that it says is that of the bytes it writes, decoded by another program,
// and it is well below that of plain codes of 2 bits.
#include "kernels/encode_wint2.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gpu/dtype.h"
#include "gpu/isa.h"
#include "kernels/cpu/routines.h"

namespace troupe::kernels {
namespace {

struct Encoded {
  Encoded(Isa isa, const std::vector<float>& weights, int outputs, int inputs)
      : outputs(std::size_t(outputs)),
        codes(std::size_t(inputs / 4 * outputs)),
        groups(std::size_t(inputs / 128 * outputs)),
        super_scales(this->outputs),
        code_scales(this->outputs),
        code_zps(this->outputs) {
    for (std::size_t o = 0; o < this->outputs; ++o) {
      error += encode_wint2(isa, weights.data() + o * std::size_t(inputs), inputs,
                            {codes.data(), groups.data(), super_scales.data(), code_scales.data(),
                             code_zps.data(), this->outputs},
                            o);
    }
  }
  double weight(std::size_t output, std::size_t input) const {
    const double line =
        double(codes[input / 4 * outputs + output]) * double(code_scales[output]) + double(code_zps[output]);
    const int word = int(std::floor(float(line) + 0.5f));
    const std::uint8_t both = groups[input / 128 * outputs + output];
    const int scale = input % 128 < 64 ? both / 16 : both % 16;
    return double((word >> (9 - 3 * int(input % 4))) % 64 - 32) * scale *
           double(bf16_to_float(super_scales[output]));
  }
  std::size_t outputs;
  std::vector<std::uint8_t> codes, groups;
  std::vector<std::uint16_t> super_scales;
  std::vector<float> code_scales, code_zps;
  Wint2Error error;
};

/// Four even levels from the smallest to the largest number of each 64: the squared error of all.
double plain_error(const std::vector<float>& weights) {
  double error = 0;
  for (std::size_t first = 0; first < weights.size(); first += 64) {
    const auto begin = weights.begin() + long(first), end = begin + 64;
    const double low = double(*std::min_element(begin, end)), high = double(*std::max_element(begin, end));
    const double step = (high - low) / 3;
    for (auto w = begin; w != end; ++w) {
      const double level = step > 0 ? std::nearbyint((double(*w) - low) / step) * step + low : low;
      error += (level - double(*w)) * (level - double(*w));
    }
  }
  return error;
}

std::vector<float> drawn(bool heavy_tails, std::size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.02f);
  std::student_t_distribution<float> heavy(4);
  std::vector<float> weights(count);
  for (std::size_t i = 0; i < count; ++i) {
    // Outputs and groups differ in size, as those of models do.
    const float size = 1 + 0.5f * float(i / 64 % 5);
    weights[i] = bf16_to_float(float_to_bf16(size * (heavy_tails ? 0.02f * heavy(random) : normal(random))));
  }
  return weights;
}

class EncodeWint2 : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(On, EncodeWint2, testing::ValuesIn(usable_isas()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(EncodeWint2, IsWellBelowPlainCodes) {
  constexpr int kOutputs = 6, kInputs = 640;
  for (const bool heavy_tails : {false, true}) {
    const std::vector<float> weights = drawn(heavy_tails, kOutputs * kInputs);
    const Encoded encoded(GetParam(), weights, kOutputs, kInputs);
    double squares = 0, all = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double off = encoded.weight(i / kInputs, i % kInputs) - double(weights[i]);
      squares += off * off;
      all += double(weights[i]) * double(weights[i]);
    }
    EXPECT_TRUE(encoded.error.finite);
    EXPECT_NEAR(encoded.error.squares, squares, 1e-4 * all);
    EXPECT_NEAR(encoded.error.of_weights, all, 1e-4 * all);
    EXPECT_LE(squares, 0.8 * plain_error(weights)) << heavy_tails;
    if (!heavy_tails) {
      EXPECT_LT(squares, 0.12 * all);  // four even levels with the best scale: 0.119
    }
    const Wint2Lines lines =
        routines(GetParam()).wint2_lines(encoded.code_scales.data(), encoded.code_zps.data(), kOutputs);
    EXPECT_EQ(lines.out_of_range, -1);
    EXPECT_EQ(lines.differing, 0);
  }
}

TEST_P(EncodeWint2, ZerosTinyAndHugeNumbers) {
  constexpr int kInputs = 128;
  std::vector<float> weights(4 * kInputs);
  for (int i = 0; i < kInputs; ++i) {
    weights[std::size_t(kInputs + i)] = i < 64 ? 0.0f : 1e-3f * float(i % 3 - 1);  // a group of zeros
    weights[std::size_t(2 * kInputs + i)] = 1e-41f;
    weights[std::size_t(3 * kInputs + i)] = 1e15f * float(i % 7 - 3);
  }
  const Encoded encoded(GetParam(), weights, 4, kInputs);
  for (std::size_t i = 0; i < kInputs; ++i) {
    EXPECT_EQ(encoded.weight(0, i), 0);
    EXPECT_EQ(encoded.weight(2, i), 0);
    if (i < 64) {
      EXPECT_EQ(encoded.weight(1, i), 0);
    }
    EXPECT_NEAR(encoded.weight(3, i), weights[3 * kInputs + i], 2e15);
  }
  for (const std::uint16_t scale : encoded.super_scales) EXPECT_GT(bf16_to_float(scale), 0);
  weights[5] = std::nanf("");
  EXPECT_FALSE(Encoded(GetParam(), weights, 4, kInputs).error.finite);
}

}  // namespace
}  // namespace troupe::kernels
