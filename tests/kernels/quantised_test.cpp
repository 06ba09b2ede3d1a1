// Products with quantised weights on the Cpu: against sums in double precision over the same codes, the
// integers of all instruction sets, and a row's bits alone and among others.
#include <cstring>

#include "kernels/linear_add.h"
#include "kernels/lm_head.h"
#include "kernels/mlp.h"
#include "kernels/moe.h"
#include "kernels/quantised_weights.h"

namespace troupe::kernels {
namespace {

class Quantised : public testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  Isa isa() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  std::unique_ptr<DeviceUnderTest> device_with(int threads) const {
    return device_at({.isa = isa()}, threads);
  }
  DeviceUnderTest& device() {
    if (!device_) device_ = device_with(2);
    return *device_;
  }

 private:
  std::unique_ptr<DeviceUnderTest> device_;
};
INSTANTIATE_TEST_SUITE_P(On, Quantised,
                         testing::Combine(testing::ValuesIn(usable_isas()), testing::ValuesIn(all_dtypes())),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) + "_" +
                                  to_string(std::get<1>(info.param));
                         });

TEST_P(Quantised, AnyShapeAgainstDoublePrecision) {
  for (const WeightFormat& format : quantised_formats(dtype())) {
    for (const auto& [rows, outputs, inputs] : std::vector<std::array<int, 3>>{{1, 1, 1},
                                                                               {1, 33, 7},
                                                                               {2, 64, 33},
                                                                               {5, 31, 576},
                                                                               {13, 96, 65},
                                                                               {25, 70, 1000},
                                                                               {40, 160, 300}}) {
      const QuantisedWeight weight(device(), format, outputs, inputs,
                                   random_floats(std::size_t(outputs * inputs), 1, 0.05f));
      const Rows x(device(), dtype(), rows, inputs, random_floats(std::size_t(rows * inputs), 2));
      Rows logits(device(), DType::f32, rows, outputs);
      run(device(), LmHead{.logits = logits.floats(), .x = x.data(), .weight = weight.matrix, .rows = rows});
      const auto before = random_floats(std::size_t(rows * outputs), 3);
      Rows sums(device(), DType::f32, rows, outputs, before);
      run(device(),
          LinearAdd{.residual = sums.floats(), .x = x.data(), .weight = weight.matrix, .rows = rows});
      const Packed packed(weight.matrix);
      for (int r = 0; r < rows; ++r) {
        const Codes codes = quantised_row(row_of(x, r));
        for (int o = 0; o < outputs; ++o) {
          double size = 0;
          const double expected = quantised_dot(packed, o, codes, size);
          ASSERT_NEAR(logits.at(r, o), expected, 1e-6 * size) << to_string(format) << rows << "x" << outputs;
          ASSERT_EQ(sums.at(r, o), before[std::size_t(r * outputs + o)] + logits.at(r, o));
        }
      }
      for (int r = 0; r < rows; ++r) {
        for (int o = outputs; o < padded(outputs); ++o)
          ASSERT_EQ(reinterpret_cast<const float*>(logits.row(r))[o], 0) << "padding";
      }
    }
  }
}

// Scales that are powers of two and integers below 2^24 leave nothing to round: every set has to give the
// exact number, at the largest codes too.
TEST_P(Quantised, TheIntegersAreExact) {
  constexpr int kOutputs = 34, kInputs = 96;
  for (const WeightFormat& format : quantised_formats(dtype())) {
    const int most = format.kind == WeightKind::int4 ? 7 : 127;
    std::vector<float> values(kOutputs * kInputs);
    std::mt19937 random(11);
    for (int o = 0; o < kOutputs; ++o) {
      for (int i = 0; i < kInputs; ++i) {
        float& value = values[std::size_t(o * kInputs + i)];
        value =
            o < 4 ? float(o % 2 == 0 ? most : -most) : float(int(random() % unsigned(2 * most + 1)) - most);
        if (i % 32 == 0) value = float(most);  // every group's scale is 1
      }
    }
    for (const int rows : {1, 4, 9}) {
      std::vector<float> x(std::size_t(rows) * kInputs);
      for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < kInputs; ++i) {
          float& value = x[std::size_t(r * kInputs + i)];
          value = r < 2 ? float(r == 0 ? 127 : -127) : float(int(random() % 255) - 127);
          if (i % 32 == 31) value = -127;
        }
      }
      const QuantisedWeight weight(device(), format, kOutputs, kInputs, values);
      const Rows in(device(), dtype(), rows, kInputs, x);
      Rows out(device(), DType::f32, rows, kOutputs);
      run(device(), LmHead{.logits = out.floats(), .x = in.data(), .weight = weight.matrix, .rows = rows});
      for (int r = 0; r < rows; ++r) {
        for (int o = 0; o < kOutputs; ++o) {
          int exact = 0;
          for (int i = 0; i < kInputs; ++i)
            exact += int(values[std::size_t(o * kInputs + i)]) * int(x[std::size_t(r * kInputs + i)]);
          ASSERT_EQ(out.at(r, o), float(exact)) << to_string(format) << " row " << r << " output " << o;
        }
      }
    }
  }
}

TEST_P(Quantised, ARowsBitsDependOnThatRowAlone) {
  constexpr int kRows = 61, kOutputs = 130, kInputs = 1515;  // several chunks of a panel
  for (const WeightFormat& format : quantised_formats(dtype())) {
    const QuantisedWeight weight(device(), format, kOutputs, kInputs, random_floats(kOutputs * kInputs, 3));
    const Rows x(device(), dtype(), kRows, kInputs, random_floats(kRows * kInputs, 4));
    Rows alone(device(), DType::f32, kRows, kOutputs);
    for (int r = 0; r < kRows; ++r) {
      run(device(), LmHead{.logits = alone.floats() + std::size_t(r) * alone.row_bytes() / sizeof(float),
                           .x = x.device_row(r),
                           .weight = weight.matrix,
                           .rows = 1});
    }
    for (const int threads : {1, 3}) {
      const auto other = device_with(threads);
      for (int rows = 2; rows <= kRows; rows += rows < 40 ? 1 : 21) {
        const int first = (rows * 7) % (kRows - rows + 1);
        Rows some(*other, DType::f32, rows, kOutputs);
        run(*other,
            LmHead{.logits = some.floats(), .x = x.device_row(first), .weight = weight.matrix, .rows = rows});
        for (int r = 0; r < rows; ++r) {
          ASSERT_EQ(std::memcmp(some.row(r), alone.row(first + r), some.row_bytes()), 0)
              << to_string(format) << " row " << first + r << " among " << rows << " with " << threads
              << " threads";
        }
      }
    }
  }
}

TEST_P(Quantised, ManyRowsInSeveralBlocks) {
  constexpr int kRows = 900, kOutputs = 40, kInputs = 2050;  // more operand bytes than one row block holds
  for (const WeightFormat& format : {quantised_formats(dtype())[0], quantised_formats(dtype())[3]}) {
    const QuantisedWeight weight(device(), format, kOutputs, kInputs, random_floats(kOutputs * kInputs, 5));
    const Rows x(device(), dtype(), kRows, kInputs, random_floats(std::size_t{kRows} * kInputs, 6));
    Rows all(device(), DType::f32, kRows, kOutputs);
    run(device(), LmHead{.logits = all.floats(), .x = x.data(), .weight = weight.matrix, .rows = kRows});
    for (const int r : {0, 11, 12, 191, 192, 350, 449, 450, 898, 899}) {
      Rows one(device(), DType::f32, 1, kOutputs);
      run(device(), LmHead{.logits = one.floats(), .x = x.device_row(r), .weight = weight.matrix, .rows = 1});
      ASSERT_EQ(std::memcmp(one.row(0), all.row(r), one.row_bytes()), 0) << r;
      double size = 0;
      const double expected = quantised_dot(Packed(weight.matrix), 39, quantised_row(row_of(x, r)), size);
      ASSERT_NEAR(one.at(0, 39), expected, 1e-6 * size);
    }
  }
}

TEST_P(Quantised, XAtItsLimits) {
  constexpr int kInputs = 96;
  const WeightFormat format{WeightKind::int8, dtype()};
  const QuantisedWeight weight(device(), format, 1, kInputs, std::vector<float>(kInputs, 1.0f));
  Rows x(device(), dtype(), 4, kInputs, random_floats(4 * kInputs, 8));
  for (int i = 0; i < kInputs; ++i) x.set(0, i, 0);
  x.set(1, 40, std::nanf(""));
  x.set(2, 95, -std::numeric_limits<float>::infinity());
  Rows y(device(), DType::f32, 4, 1);
  run(device(), LmHead{.logits = y.floats(), .x = x.data(), .weight = weight.matrix, .rows = 4});
  EXPECT_EQ(y.at(0, 0), 0);
  EXPECT_TRUE(std::isnan(y.at(1, 0)));
  EXPECT_TRUE(std::isnan(y.at(2, 0)));
  EXPECT_TRUE(std::isfinite(y.at(3, 0)));
}

/// gate|up and down of one MLP.
struct MlpWeights {
  MlpWeights(DeviceUnderTest& device, const WeightFormat& format, int hidden, int intermediate,
             std::uint32_t seed)
      : MlpWeights(device, format, hidden, intermediate, seed, nullptr, nullptr) {}
  /// In memory of the caller, unless null.
  MlpWeights(DeviceUnderTest& device, const WeightFormat& format, int hidden, int intermediate,
             std::uint32_t seed, void* gate_up_at, void* down_at)
      : gate_up_memory(device, matrix_bytes(format, gate_up_outputs(intermediate), hidden)),
        down_memory(device, matrix_bytes(format, hidden, intermediate)),
        gate_up{gate_up_at ? gate_up_at : gate_up_memory.as(), format, gate_up_outputs(intermediate), hidden},
        down{down_at ? down_at : down_memory.as(), format, hidden, intermediate} {
    for (const Place place : {Place::up, Place::gate}) {
      const auto values = random_floats(std::size_t(hidden * intermediate), seed + unsigned(place), 0.2f);
      run(device, Pack{.into = gate_up,
                       .source = values.data(),
                       .source_dtype = DType::f32,
                       .place = place,
                       .outputs = intermediate});
    }
    const auto values = random_floats(std::size_t(hidden * intermediate), seed + 9, 0.2f);
    run(device, Pack{.into = down, .source = values.data(), .source_dtype = DType::f32, .outputs = hidden});
  }
  Memory gate_up_memory, down_memory;
  Matrix gate_up, down;
};

TEST_P(Quantised, MlpAgainstDoublePrecision) {
  for (const WeightFormat& format : quantised_formats(dtype())) {
    for (const auto& [rows, hidden, intermediate] :
         std::vector<std::array<int, 3>>{{1, 16, 5}, {3, 48, 80}, {14, 33, 100}, {2, 64, 64}}) {
      const MlpWeights weights(device(), format, hidden, intermediate, 7);
      const Rows x(device(), dtype(), rows, hidden, random_floats(std::size_t(rows * hidden), 10));
      const auto before = random_floats(std::size_t(rows * hidden), 11);
      Rows y(device(), DType::f32, rows, hidden, before);
      Rows activation(device(), dtype(), rows, intermediate);
      run(device(), Mlp{.residual = y.floats(),
                        .x = x.data(),
                        .activation = activation.data(),
                        .gate_up = weights.gate_up,
                        .down = weights.down,
                        .rows = rows});
      for (int r = 0; r < rows; ++r) {
        const Codes codes = quantised_row(row_of(x, r));
        double size = 0;
        for (int j = 0; j < intermediate; ++j) {
          const double g = quantised_dot(Packed(weights.gate_up), j / 32 * 64 + j % 32, codes, size);
          const double u = quantised_dot(Packed(weights.gate_up), j / 32 * 64 + 32 + j % 32, codes, size);
          const double a = g / (1 + std::exp(-g)) * u;
          ASSERT_NEAR(activation.at(r, j), a, 1e-4 + 1.01 * rounding_unit(dtype()) * std::abs(a));
        }
        const Codes activations = quantised_row(row_of(activation, r));
        for (int i = 0; i < hidden; ++i) {
          const double expected =
              before[std::size_t(r * hidden + i)] + quantised_dot(Packed(weights.down), i, activations, size);
          ASSERT_NEAR(y.at(r, i), expected, 1e-6 * (size + 1));
        }
      }
    }
  }
}

// All experts are chosen, so the block is a sum of MLPs; those have a test of their own.
TEST_P(Quantised, MoeIsTheSumOfItsExperts) {
  constexpr int kHidden = 72, kIntermediate = 40, kExperts = 3, kShared = 1, kGroups = kExperts + kShared;
  for (const WeightFormat& format : quantised_formats(dtype())) {
    const Matrix gate_up{nullptr, format, gate_up_outputs(kIntermediate), kHidden};
    const Matrix down{nullptr, format, kHidden, kIntermediate};
    MatrixStack gate_ups{gate_up, kGroups}, downs{down, kGroups};
    const Memory gate_up_memory(device(), kGroups * gate_ups.stride()),
        down_memory(device(), kGroups * downs.stride());
    gate_ups.first.data = gate_up_memory.as();
    downs.first.data = down_memory.as();
    std::vector<std::unique_ptr<MlpWeights>> experts;
    for (int g = 0; g < kGroups; ++g) {
      experts.push_back(std::make_unique<MlpWeights>(device(), format, kHidden, kIntermediate,
                                                     20u * unsigned(g), gate_ups.at(g).data,
                                                     downs.at(g).data));
    }
    const Weight router(device(), DType::f32, kExperts, kHidden, random_floats(kExperts * kHidden, 4, 0.1f));
    const Rows bias(device(), DType::f32, 1, kExperts);
    constexpr int kRows = 45;
    const Rows x(device(), dtype(), kRows, kHidden, random_floats(kRows * kHidden, 5));
    const auto moe = [&](DeviceUnderTest& where, Rows& y, int first, int rows) {
      run(where, Moe{.residual = y.floats(),
                     .x = x.device_row(first),
                     .router = router.matrix,
                     .bias = bias.floats(),
                     .gate_up = gate_ups,
                     .down = downs,
                     .experts = kExperts,
                     .shared = kShared,
                     .top_k = kExperts,
                     .rows = rows});
    };
    Rows y(device(), DType::f32, kRows, kHidden);
    moe(device(), y, 0, kRows);
    std::vector<std::unique_ptr<Rows>> parts;
    for (const auto& expert : experts) {
      parts.push_back(std::make_unique<Rows>(device(), DType::f32, kRows, kHidden));
      const Rows activation(device(), dtype(), kRows, kIntermediate);
      run(device(), Mlp{.residual = parts.back()->floats(),
                        .x = x.data(),
                        .activation = activation.data(),
                        .gate_up = expert->gate_up,
                        .down = expert->down,
                        .rows = kRows});
    }
    for (int r = 0; r < kRows; ++r) {
      double p[kExperts], sum = 0;
      for (int e = 0; e < kExperts; ++e)
        sum += p[e] = std::exp(router.dot(e, [&](int i) { return x.at(r, i); }));
      for (int i = 0; i < kHidden; ++i) {
        double expected = 0, size = 0;
        for (int g = 0; g < kGroups; ++g) {
          const double part = (g < kExperts ? p[g] / sum : 1) * double(parts[std::size_t(g)]->at(r, i));
          expected += part;
          size += std::abs(part);
        }
        ASSERT_NEAR(y.at(r, i), expected, (1.01 * rounding_unit(dtype()) + 1e-6) * size) << to_string(format);
      }
    }
    for (const int threads : {1, 3}) {
      const auto other = device_with(threads);
      for (const int rows : {1, 2, 7, 25}) {
        for (int first = 0; first + rows <= kRows; first += 19) {
          Rows some(*other, DType::f32, rows, kHidden);
          moe(*other, some, first, rows);
          for (int r = 0; r < rows; ++r)
            ASSERT_EQ(std::memcmp(some.row(r), y.row(first + r), y.row_bytes()), 0)
                << first + r << " of " << rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
