// wint2 on the Cpu: matrices packed from files of drawn bytes, products against sums in double precision over
// weights that this file decodes on its own, and a row's bits alone and among others.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cpu/routines.h"
#include "kernels/fill_random.h"
#include "kernels/linear_add.h"
#include "kernels/lm_head.h"
#include "kernels/mlp.h"
#include "kernels/moe.h"
#include "kernels/quantised_weights.h"
#include "kernels/wint2.h"
#include "kernels/wint2_file.h"

namespace troupe::kernels {
namespace {

struct Wint2Weight {
  Wint2Weight(DeviceUnderTest& device, const Wint2File& file, DType dtype)
      : format{WeightKind::wint2, dtype},
        memory(device, matrix_bytes(format, file.outputs, file.inputs)),
        matrix{memory.as(), format, file.outputs, file.inputs} {
    file.pack(device, matrix);
  }
  WeightFormat format;
  Memory memory;
  Matrix matrix;
};

class Wint2 : public testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  Isa isa() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  std::unique_ptr<DeviceUnderTest> device_with(int threads) const {
    return device_at({.isa = isa()}, threads);
  }
};
INSTANTIATE_TEST_SUITE_P(On, Wint2,
                         testing::Combine(testing::ValuesIn(usable_isas()), testing::ValuesIn(all_dtypes())),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) + "_" +
                                  to_string(std::get<1>(info.param));
                         });

TEST_P(Wint2, ProductsAgainstDoublePrecision) {
  const auto device = device_with(2);
  for (const auto& [rows, outputs, inputs] : std::vector<std::array<int, 3>>{{1, 1, 128},
                                                                             {1, 33, 256},
                                                                             {3, 64, 384},
                                                                             {8, 31, 640},
                                                                             {9, 96, 1152},
                                                                             {25, 70, 128},
                                                                             {40, 160, 896}}) {
    const Wint2File file(outputs, inputs, 5, 3, 40);
    const Wint2Weight weight(*device, file, dtype());
    const Rows x(*device, dtype(), rows, inputs, random_floats(std::size_t(rows * inputs), 2));
    Rows y(*device, DType::f32, rows, outputs);
    run(*device, LmHead{.logits = y.floats(), .x = x.data(), .weight = weight.matrix, .rows = rows});
    for (int r = 0; r < rows; ++r) {
      const Codes codes = quantised_row(row_of(x, r));
      for (int o = 0; o < outputs; ++o) {
        double expected = 0, size = 0;
        for (int i = 0; i < inputs; ++i) {
          const double product =
              file.weight(o, i) * double(codes.scales[std::size_t(i / 32)]) * codes.codes[std::size_t(i)];
          expected += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(y.at(r, o), expected, 1e-6 * size) << rows << " rows, " << outputs << "x" << inputs;
      }
      for (int o = outputs; o < padded(outputs); ++o)
        ASSERT_EQ(reinterpret_cast<const float*>(y.row(r))[o], 0) << "padding";
    }
  }
}

TEST_P(Wint2, ARowsBitsDependOnThatRowAlone) {
  constexpr int kRows = 61, kOutputs = 130, kInputs = 1536;
  const auto device = device_with(2);
  const Wint2Weight weight(*device, Wint2File(kOutputs, kInputs, 3), dtype());
  const Rows x(*device, dtype(), kRows, kInputs, random_floats(kRows * kInputs, 4));
  Rows alone(*device, DType::f32, kRows, kOutputs);
  for (int r = 0; r < kRows; ++r) {
    run(*device, LmHead{.logits = reinterpret_cast<float*>(const_cast<std::byte*>(alone.row(r))),
                        .x = x.device_row(r),
                        .weight = weight.matrix,
                        .rows = 1});
  }
  for (const int threads : {1, 3}) {
    const auto other = device_with(threads);
    for (int rows = 2; rows <= kRows; rows += rows < 40 ? 1 : 21) {
      const int first = rows * 7 % (kRows - rows + 1);
      Rows some(*other, DType::f32, rows, kOutputs);
      run(*other,
          LmHead{.logits = some.floats(), .x = x.device_row(first), .weight = weight.matrix, .rows = rows});
      for (int r = 0; r < rows; ++r) {
        ASSERT_EQ(std::memcmp(some.row(r), alone.row(first + r), some.row_bytes()), 0)
            << "row " << first + r << " among " << rows << " with " << threads << " threads";
      }
    }
  }
}

/// Experts of a router whose weights are zero: each has the weight 1 / experts.
TEST_P(Wint2, ExpertsAgainstDoublePrecision) {
  constexpr int kHidden = 256, kWidth = 128, kExperts = 3, kRows = 21;
  const auto device = device_with(2);
  const WeightFormat format{WeightKind::wint2, dtype()};
  MatrixStack gate_up{{nullptr, format, gate_up_outputs(kWidth), kHidden}, kExperts},
      down{{nullptr, format, kHidden, kWidth}, kExperts};
  const Memory gate_up_memory(*device, kExperts * gate_up.stride()),
      down_memory(*device, kExperts * down.stride());
  gate_up.first.data = gate_up_memory.as();
  down.first.data = down_memory.as();
  std::vector<Wint2File> gates, ups, downs;
  for (int e = 0; e < kExperts; ++e) {
    const auto seed = 10u * unsigned(e);
    gates.emplace_back(kWidth, kHidden, seed, 0, kWidth);
    ups.emplace_back(kWidth, kHidden, seed + 1, kWidth, 0);
    downs.emplace_back(kHidden, kWidth, seed + 2);
    gates.back().pack(*device, gate_up.at(e), Place::gate);
    ups.back().pack(*device, gate_up.at(e), Place::up);
    downs.back().pack(*device, down.at(e));
  }
  const Weight router(*device, DType::f32, kExperts, kHidden, std::vector<float>(kExperts * kHidden));
  const Rows bias(*device, DType::f32, 1, kExperts);
  const Rows x(*device, dtype(), kRows, kHidden, random_floats(kRows * kHidden, 5));
  Rows y(*device, DType::f32, kRows, kHidden);
  run(*device, Moe{.residual = y.floats(),
                   .x = x.data(),
                   .router = router.matrix,
                   .bias = bias.floats(),
                   .gate_up = gate_up,
                   .down = down,
                   .experts = kExperts,
                   .top_k = kExperts,
                   .rows = kRows});
  double errors = 0, squares = 0;
  for (int r = 0; r < kRows; ++r) {
    const Codes codes = quantised_row(row_of(x, r));
    std::vector<double> sums(kHidden);
    for (int e = 0; e < kExperts; ++e) {
      std::vector<float> a(kWidth);
      for (int o = 0; o < kWidth; ++o) {
        double gate = 0, up = 0;
        for (int i = 0; i < kHidden; ++i) {
          const double input = double(codes.scales[std::size_t(i / 32)]) * codes.codes[std::size_t(i)];
          gate += gates[std::size_t(e)].weight(o, i) * input;
          up += ups[std::size_t(e)].weight(o, i) * input;
        }
        a[std::size_t(o)] = rounded_to(dtype(), float(gate / (1 + std::exp(-gate)) * up));
      }
      const Codes inner = quantised_row(a);
      for (int o = 0; o < kHidden; ++o) {
        for (int i = 0; i < kWidth; ++i) {
          sums[std::size_t(o)] += downs[std::size_t(e)].weight(o, i) *
                                  double(inner.scales[std::size_t(i / 32)]) * inner.codes[std::size_t(i)] /
                                  kExperts;
        }
      }
    }
    for (int o = 0; o < kHidden; ++o) {
      const double error = double(y.at(r, o)) - sums[std::size_t(o)];
      errors += error * error;
      squares += sums[std::size_t(o)] * sums[std::size_t(o)];
    }
  }
  // A code of the inner row may fall to either side of a border; the rest is rounding to the dtype.
  EXPECT_GT(squares, 0);
  EXPECT_LT(std::sqrt(errors / squares), 2e-3 + 2 * rounding_unit(dtype()));
}

TEST_P(Wint2, LinesAreChecked) {
  const Routines& r = routines(isa());
  std::vector<float> scales(40, 100), zps(40, 7.25f);
  EXPECT_EQ(r.wint2_lines(scales.data(), zps.data(), 40).out_of_range, -1);
  EXPECT_EQ(r.wint2_lines(scales.data(), zps.data(), 40).differing, 0);
  for (const auto& [scale, zp] : std::vector<std::pair<float, float>>{{129, 0},
                                                                      {1, -1},
                                                                      {-1, 0},
                                                                      {128, 127.5f},
                                                                      {std::nanf(""), 0},
                                                                      {1, std::nanf("")},
                                                                      {INFINITY, 0}}) {
    scales[37] = scale;
    zps[37] = zp;
    EXPECT_EQ(r.wint2_lines(scales.data(), zps.data(), 40).out_of_range, 37) << scale << " " << zp;
    EXPECT_EQ(r.wint2_lines(scales.data(), zps.data(), 37).out_of_range, -1);
  }
}

// What a rank draws is what the whole matrix has there.
TEST_P(Wint2, DrawnWeightsHaveTheDeviationAndPartsAreTheWholes) {
  constexpr int kOutputs = 64, kInputs = 512;
  const auto device = device_with(2);
  const WeightFormat format{WeightKind::wint2, dtype()};
  const auto draw = [&](const Matrix& into, int first_output, int first_input) {
    run(*device, FillRandom{.into = into,
                            .outputs = into.outputs,
                            .seed = 9,
                            .deviation = 0.5f,
                            .first_output = first_output,
                            .part = {first_input, kInputs}});
  };
  // A row of zeros but for one number gives that input's weights.
  const auto weights = [&](const Matrix& matrix) {
    Rows x(*device, dtype(), matrix.inputs, matrix.inputs),
        y(*device, DType::f32, matrix.inputs, matrix.outputs);
    for (int i = 0; i < matrix.inputs; ++i) x.set(i, i, 127);
    run(*device, LmHead{.logits = y.floats(), .x = x.data(), .weight = matrix, .rows = matrix.inputs});
    std::vector<float> found;
    for (int i = 0; i < matrix.inputs; ++i) {
      for (int o = 0; o < matrix.outputs; ++o) found.push_back(y.at(i, o) / 127);
    }
    return found;
  };
  const Memory memory(*device, matrix_bytes(format, kOutputs, kInputs));
  const Matrix whole{memory.as(), format, kOutputs, kInputs};
  draw(whole, 0, 0);
  const std::vector<float> all = weights(whole);
  double sum = 0, squares = 0;
  for (const float w : all) {
    sum += double(w);
    squares += double(w) * double(w);
  }
  const double mean = sum / double(all.size()), deviation = std::sqrt(squares / double(all.size()));
  EXPECT_NEAR(deviation, 0.5, 0.02);
  EXPECT_NEAR(mean, 0, 0.03);
  const Memory part_memory(*device, matrix_bytes(format, 32, 128));
  const Matrix part{part_memory.as(), format, 32, 128};
  draw(part, 32, 256);
  const std::vector<float> some = weights(part);
  for (int i = 0; i < 128; ++i) {
    for (int o = 0; o < 32; ++o)
      ASSERT_EQ(some[std::size_t(i * 32 + o)], all[std::size_t((256 + i) * kOutputs + 32 + o)]);
  }
}

}  // namespace
}  // namespace troupe::kernels
