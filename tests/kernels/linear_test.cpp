// Matrix products: every shape against a sum in double precision; a row's bits alone, among others, and
// with any number of threads.
#include <cstring>

#include "kernels/device_under_test.h"
#include "kernels/linear_add.h"
#include "kernels/lm_head.h"
#include "kernels/mlp.h"

namespace troupe::kernels {
namespace {

class Linear : public OpTest {};
TROUPE_ALL_DEVICES(Linear);

TEST_P(Linear, HandNumbers) {
  const Weight weight(device(), dtype(), 2, 3, {1, 2, 3, -4, 0.5f, 0});
  const Rows x(device(), dtype(), 2, 3, {1, 10, 100, 2, 4, -8});
  Rows y(device(), DType::f32, 2, 2, {1000, 2000, 0, 0});
  run(device(), LinearAdd{.residual = y.floats(), .x = x.data(), .weight = weight.matrix, .rows = 2});
  EXPECT_EQ(y.at(0, 0), 1321);
  EXPECT_EQ(y.at(0, 1), 2001);
  EXPECT_EQ(y.at(1, 0), -14);
  EXPECT_EQ(y.at(1, 1), -6);
}

TEST_P(Linear, AnyShapeAgainstDoublePrecision) {
  for (const auto& [rows, outputs, inputs] : std::vector<std::array<int, 3>>{
           {1, 1, 1}, {1, 33, 7}, {2, 64, 32}, {5, 31, 33}, {13, 96, 65}, {25, 70, 129}, {40, 160, 300}}) {
    const Weight weight(device(), dtype(), outputs, inputs, random_floats(std::size_t(outputs * inputs), 1));
    const Rows x(device(), dtype(), rows, inputs, random_floats(std::size_t(rows * inputs), 2));
    Rows logits(device(), DType::f32, rows, outputs);
    run(device(), LmHead{.logits = logits.floats(), .x = x.data(), .weight = weight.matrix, .rows = rows});
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < outputs; ++o) {
        const double expected = weight.dot(o, [&](int i) { return x.at(r, i); });
        ASSERT_NEAR(logits.at(r, o), expected, 2e-6 * inputs) << rows << "x" << outputs << "x" << inputs;
      }
    }
  }
}

TEST_P(Linear, ARowsBitsDependOnThatRowAlone) {
  constexpr int kRows = 61, kOutputs = 130, kInputs = 515;
  const Weight weight(device(), dtype(), kOutputs, kInputs, random_floats(kOutputs * kInputs, 3));
  const Rows x(device(), dtype(), kRows, kInputs, random_floats(kRows * kInputs, 4));
  Rows all(device(), DType::f32, kRows, kOutputs);
  run(device(), LmHead{.logits = all.floats(), .x = x.data(), .weight = weight.matrix, .rows = kRows});
  for (const int threads : {1, 2, 3}) {
    const auto other = device_with(threads);
    for (const int rows : {1, 2, 7, 12, 13, 60}) {
      for (int first = 0; first + rows <= kRows; first += 17) {
        Rows some(*other, DType::f32, rows, kOutputs);
        run(*other,
            LmHead{.logits = some.floats(), .x = x.row(first), .weight = weight.matrix, .rows = rows});
        for (int r = 0; r < rows; ++r) {
          ASSERT_EQ(std::memcmp(some.row(r), all.row(first + r), some.row_bytes()), 0)
              << "row " << first + r << " among " << rows << " with " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(Linear, ManyRowsInSeveralBlocks) {
  constexpr int kRows = 700, kOutputs = 40, kInputs = 2050;  // more operand bytes than one row block holds
  const Weight weight(device(), dtype(), kOutputs, kInputs, random_floats(kOutputs * kInputs, 5));
  const Rows x(device(), dtype(), kRows, kInputs, random_floats(std::size_t{kRows} * kInputs, 6));
  Rows all(device(), DType::f32, kRows, kOutputs);
  run(device(), LmHead{.logits = all.floats(), .x = x.data(), .weight = weight.matrix, .rows = kRows});
  for (const int r : {0, 11, 12, 191, 192, 350, 698, 699}) {
    Rows one(device(), DType::f32, 1, kOutputs);
    run(device(), LmHead{.logits = one.floats(), .x = x.row(r), .weight = weight.matrix, .rows = 1});
    ASSERT_EQ(std::memcmp(one.row(0), all.row(r), one.row_bytes()), 0) << r;
    ASSERT_NEAR(one.at(0, 39), weight.dot(39, [&](int i) { return x.at(r, i); }), 2e-6 * kInputs);
  }
}

TEST_P(Linear, NothingWithoutRows) {
  const Weight weight(device(), dtype(), 2, 2, {1, 1, 1, 1});
  run(device(), LmHead{.logits = nullptr, .x = nullptr, .weight = weight.matrix, .rows = 0});
}

TEST_P(Linear, MlpAgainstDoublePrecision) {
  for (const auto& [rows, hidden, intermediate] :
       std::vector<std::array<int, 3>>{{1, 16, 5}, {3, 48, 80}, {14, 33, 100}, {2, 64, 64}}) {
    const auto w = [&](int outputs, int inputs, std::uint32_t seed) {
      auto values = random_floats(std::size_t(outputs * inputs), seed, 0.3f);
      for (float& v : values) v = rounded_to(dtype(), v);
      return values;
    };
    const auto gate = w(intermediate, hidden, 7), up = w(intermediate, hidden, 8);
    const Weight down(device(), dtype(), hidden, intermediate, w(hidden, intermediate, 9));
    const int outputs = gate_up_outputs(intermediate);
    const Memory memory(device(), matrix_bytes(dtype(), outputs, hidden));
    const Matrix gate_up{memory.as(), dtype(), outputs, hidden};
    Pack pack{.into = gate_up,
              .source = up.data(),
              .source_dtype = DType::f32,
              .place = Place::up,
              .outputs = intermediate};
    run(device(), pack);
    pack.source = gate.data();
    pack.place = Place::gate;
    run(device(), pack);

    const Rows x(device(), dtype(), rows, hidden, random_floats(std::size_t(rows * hidden), 10));
    const auto before = random_floats(std::size_t(rows * hidden), 11);
    Rows y(device(), DType::f32, rows, hidden, before);
    Rows activation(device(), dtype(), rows, intermediate);
    run(device(), Mlp{.residual = y.floats(),
                      .x = x.data(),
                      .activation = activation.data(),
                      .gate_up = gate_up,
                      .down = down.matrix,
                      .rows = rows});
    for (int r = 0; r < rows; ++r) {
      std::vector<double> a(static_cast<std::size_t>(intermediate));
      double size = 0;
      for (int j = 0; j < intermediate; ++j) {
        double g = 0, u = 0;
        for (int i = 0; i < hidden; ++i) {
          g += double(gate[std::size_t(j * hidden + i)]) * x.at(r, i);
          u += double(up[std::size_t(j * hidden + i)]) * x.at(r, i);
        }
        a[std::size_t(j)] = g / (1 + std::exp(-g)) * u;
        size += std::abs(a[std::size_t(j)]);
        ASSERT_NEAR(activation.at(r, j), a[std::size_t(j)],
                    1e-4 + 1.01 * rounding_unit(dtype()) * std::abs(a[std::size_t(j)]));
      }
      for (int i = 0; i < hidden; ++i) {
        const double expected =
            before[std::size_t(r * hidden + i)] + down.dot(i, [&](int j) { return a[std::size_t(j)]; });
        ASSERT_NEAR(y.at(r, i), expected, 1e-4 + rounding_unit(dtype()) * size);
      }
    }
  }
}

TEST_P(Linear, SiluAtTheEnds) {
  const int outputs = gate_up_outputs(1);
  const Memory memory(device(), matrix_bytes(dtype(), outputs, 2));
  const Matrix gate_up{memory.as(), dtype(), outputs, 2};
  const std::vector<float> gate{1, 0}, up{0, 1};
  run(device(), Pack{.into = gate_up,
                     .source = gate.data(),
                     .source_dtype = DType::f32,
                     .place = Place::gate,
                     .outputs = 1});
  run(device(), Pack{.into = gate_up,
                     .source = up.data(),
                     .source_dtype = DType::f32,
                     .place = Place::up,
                     .outputs = 1});
  const Weight down(device(), dtype(), 1, 1, {1});
  const Rows x(device(), dtype(), 4, 2, {-1000, 1, 1000, 1, 0, 1, -1, 1});
  Rows y(device(), DType::f32, 4, 1), activation(device(), dtype(), 4, 1);
  run(device(), Mlp{.residual = y.floats(),
                    .x = x.data(),
                    .activation = activation.data(),
                    .gate_up = gate_up,
                    .down = down.matrix,
                    .rows = 4});
  EXPECT_NEAR(y.at(0, 0), 0, 1e-30);
  EXPECT_EQ(y.at(1, 0), 1000);
  EXPECT_EQ(y.at(2, 0), 0);
  EXPECT_NEAR(y.at(3, 0), -0.268941421, 0.27 * rounding_unit(dtype()) + 1e-7);
}

}  // namespace
}  // namespace troupe::kernels
