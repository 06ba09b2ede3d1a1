// Matrix products: every shape against a sum in double precision; a row's bits alone, among others, and
// with any number of threads; on the GPU the models' own shapes beside the CPU.
#include <cstring>

#include "kernels/cuda/product/layout.h"
#include "kernels/device_under_test.h"
#include "kernels/linear_add.h"
#include "kernels/lm_head.h"
#include "kernels/mlp.h"
#include "kernels/qkv_rope_kv_write.h"

namespace troupe::kernels {
namespace {

/// Where row r lies in device memory.
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
  Rows all(invariant_device(), DType::f32, kRows, kOutputs);
  run(invariant_device(),
      LmHead{.logits = all.floats(), .x = x.data(), .weight = weight.matrix, .rows = kRows});
  for (const int threads : {1, 2, 3}) {
    const auto other = device_at(where(), threads, true);
    for (const int rows : {1, 2, 7, 12, 13, 60}) {
      for (int first = 0; first + rows <= kRows; first += 17) {
        Rows some(*other, DType::f32, rows, kOutputs);
        run(*other,
            LmHead{.logits = some.floats(), .x = x.device_row(first), .weight = weight.matrix, .rows = rows});
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
  const Weight weight(invariant_device(), dtype(), kOutputs, kInputs, random_floats(kOutputs * kInputs, 5));
  const Rows x(invariant_device(), dtype(), kRows, kInputs, random_floats(std::size_t{kRows} * kInputs, 6));
  Rows all(invariant_device(), DType::f32, kRows, kOutputs);
  run(invariant_device(),
      LmHead{.logits = all.floats(), .x = x.data(), .weight = weight.matrix, .rows = kRows});
  for (const int r : {0, 11, 12, 191, 192, 350, 698, 699}) {
    Rows one(invariant_device(), DType::f32, 1, kOutputs);
    run(invariant_device(),
        LmHead{.logits = one.floats(), .x = x.device_row(r), .weight = weight.matrix, .rows = 1});
    ASSERT_EQ(std::memcmp(one.row(0), all.row(r), one.row_bytes()), 0) << r;
    ASSERT_NEAR(one.at(0, 39), weight.dot(39, [&](int i) { return x.at(r, i); }), 2e-6 * kInputs);
  }
}

TEST_P(Linear, NothingWithoutRows) {
  const Weight weight(device(), dtype(), 2, 2, {1, 1, 1, 1});
  const Rows x(device(), dtype(), 1, 2, {3, 4});
  const Rows y(device(), DType::f32, 1, 2, {-1, -2});
  run(device(), LmHead{.logits = nullptr, .x = nullptr, .weight = weight.matrix, .rows = 0});
  run(device(), LmHead{.logits = y.floats(), .x = x.data(), .weight = weight.matrix, .rows = 0});
  EXPECT_EQ(y.at(0, 0), -1);
  EXPECT_EQ(y.at(0, 1), -2);
  run(device(), LmHead{.logits = y.floats(), .x = x.data(), .weight = weight.matrix, .rows = 1});
  EXPECT_EQ(y.at(0, 0), 7) << "the device still works";
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

TEST_P(Linear, ANormInsideIsTheNormBefore) {
  for (const auto& [hidden, intermediate] :
       std::vector<std::array<int, 2>>{{1024, where().cuda ? 3072 : 96}, {2560, 40}, {100, 7}}) {
    const auto count = std::size_t(gate_up_outputs(intermediate));
    const Weight gate_up(device(), dtype(), int(count), hidden,
                         random_floats(count * std::size_t(hidden), 21, 0.05f));
    const Weight down(device(), dtype(), hidden, intermediate,
                      random_floats(std::size_t(hidden * intermediate), 22, 0.1f));
    std::vector<float> weight = random_floats(std::size_t(padded(hidden)), 23);
    for (int i = 0; i < padded(hidden); ++i)
      weight[std::size_t(i)] = i < hidden ? rounded_to(dtype(), 1 + weight[std::size_t(i)] / 4) : 0;
    for (const int rows : {1, 2, 8, 9, 40}) {
      const auto before = random_floats(std::size_t(rows * hidden), 24, 3);
      std::vector<float> activations[2], sums[2];
      for (const bool inside : {false, true}) {
        Rows y(device(), DType::f32, rows, hidden, before), x(device(), dtype(), rows, hidden),
            activation(device(), dtype(), rows, intermediate);
        const AddRmsNorm norm{.out = x.data(),
                              .residual = y.floats(),
                              .weight = device().put(weight),
                              .dtype = dtype(),
                              .rows = rows,
                              .cols = hidden,
                              .eps = 1e-5f};
        if (!inside) run(device(), norm);
        run(device(), Mlp{.residual = y.floats(),
                          .x = x.data(),
                          .activation = activation.data(),
                          .gate_up = gate_up.matrix,
                          .down = down.matrix,
                          .rows = rows,
                          .norm = inside ? norm : AddRmsNorm{}});
        for (int r = 0; r < rows; ++r) {
          for (int i = 0; i < intermediate; ++i) activations[inside].push_back(activation.at(r, i));
          for (int i = 0; i < hidden; ++i) sums[inside].push_back(y.at(r, i));
        }
      }
      double size = 0;
      for (const float a : activations[0]) size = std::max(size, double(std::abs(a)));
      EXPECT_GT(size, 0.1);
      // Sums of squares in another order move a norm by a unit of fp32, and now and then its rounding.
      for (std::size_t i = 0; i < activations[0].size(); ++i)
        ASSERT_NEAR(activations[1][i], activations[0][i], 4 * rounding_unit(dtype()) * size)
            << rows << " " << i;
      for (std::size_t i = 0; i < sums[0].size(); ++i)
        ASSERT_NEAR(sums[1][i], sums[0][i], 1e-5 + 4 * rounding_unit(dtype()) * size) << rows << " " << i;
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

/// The same numbers on the GPU and on the CPU, whose own tests have shown it right.
class LinearOnCuda : public OpTest {
 protected:
  void SetUp() override {
    OpTest::SetUp();
    if (!where().cuda) GTEST_SKIP() << "the CPU is the reference";
    cpu_ = device_at({.isa = usable_isas().back()}, 2);
  }
  DeviceUnderTest& cpu() { return *cpu_; }
  /// max|a - b| / max|b|.
  void expect_near(const Rows& a, const Rows& b, double limit, const std::string& what) {
    double worst = 0, largest = 0;
    for (int r = 0; r < a.rows(); ++r) {
      for (int c = 0; c < a.cols(); ++c) {
        const double difference = std::abs(double(a.at(r, c)) - b.at(r, c));
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
        largest = std::max(largest, double(std::abs(b.at(r, c))));
      }
    }
    EXPECT_LE(worst, limit * largest) << what;
  }
  double limit() const { return dtype() == DType::f32 ? 3e-5 : 4 * rounding_unit(dtype()); }

 private:
  std::unique_ptr<DeviceUnderTest> cpu_;
};
INSTANTIATE_TEST_SUITE_P(On, LinearOnCuda,
                         testing::Combine(testing::Values(Where{.cuda = true}),
                                          testing::ValuesIn(all_dtypes())),
                         [](const auto& info) { return std::string(to_string(std::get<1>(info.param))); });

TEST_P(LinearOnCuda, AddOfTheModelsShapes) {
  for (const auto& [outputs, inputs] : std::vector<std::array<int, 2>>{{1024, 2048},
                                                                       {1024, 3072},
                                                                       {576, 576},
                                                                       {3696, 1536},
                                                                       {2640, 2688},
                                                                       {2592, 2048},
                                                                       {1312, 2944},
                                                                       {2560, 2560},
                                                                       {2560, 12288},
                                                                       {192, 5120}}) {
    const auto values = random_floats(std::size_t(outputs) * std::size_t(inputs), 1, 0.02f);
    const Weight here(device(), dtype(), outputs, inputs, values),
        there(cpu(), dtype(), outputs, inputs, values);
    for (const int rows : {1, 3, 8, 9, 16, 17, 32, 33, 48, 64, 65, 130}) {
      if (std::size_t(outputs) * std::size_t(inputs) > (4u << 20) && rows > 9) break;
      const auto x = random_floats(std::size_t(rows) * std::size_t(inputs), 2);
      const auto before = random_floats(std::size_t(rows) * std::size_t(outputs), 3);
      const Rows x_here(device(), dtype(), rows, inputs, x), x_there(cpu(), dtype(), rows, inputs, x);
      Rows y_here(device(), DType::f32, rows, outputs, before),
          y_there(cpu(), DType::f32, rows, outputs, before);
      run(device(),
          LinearAdd{.residual = y_here.floats(), .x = x_here.data(), .weight = here.matrix, .rows = rows});
      run(cpu(),
          LinearAdd{.residual = y_there.floats(), .x = x_there.data(), .weight = there.matrix, .rows = rows});
      expect_near(y_here, y_there, 1e-5, std::to_string(rows) + "x" + std::to_string(outputs));
    }
  }
}

TEST_P(LinearOnCuda, LogitsOfAVocabulary) {
  constexpr int kOutputs = 20011, kInputs = 640;
  const auto values = random_floats(std::size_t{kOutputs} * kInputs, 4, 0.02f);
  const Weight here(device(), dtype(), kOutputs, kInputs, values),
      there(cpu(), dtype(), kOutputs, kInputs, values);
  for (const int rows : {1, 8, 33, 70}) {
    const auto x = random_floats(std::size_t(rows) * kInputs, 5);
    const Rows x_here(device(), dtype(), rows, kInputs, x), x_there(cpu(), dtype(), rows, kInputs, x);
    Rows y_here(device(), DType::f32, rows, kOutputs, std::vector<float>(std::size_t(rows) * kOutputs, NAN));
    Rows y_there(cpu(), DType::f32, rows, kOutputs);
    run(device(), LmHead{.logits = y_here.floats(), .x = x_here.data(), .weight = here.matrix, .rows = rows});
    run(cpu(), LmHead{.logits = y_there.floats(), .x = x_there.data(), .weight = there.matrix, .rows = rows});
    expect_near(y_here, y_there, 1e-5, std::to_string(rows) + " rows");
  }
}

TEST_P(LinearOnCuda, MlpOfTheModelsShapes) {
  for (const auto& [hidden, intermediate] :
       std::vector<std::array<int, 2>>{{1024, 3072}, {576, 1536}, {96, 40}}) {
    const auto make = [&](DeviceUnderTest& on, const Memory& memory) {
      const Matrix matrix{memory.as(), dtype(), gate_up_outputs(intermediate), hidden};
      for (const Place place : {Place::gate, Place::up}) {
        const auto values = random_floats(std::size_t(intermediate) * std::size_t(hidden),
                                          place == Place::gate ? 6 : 7, 0.03f);
        run(on, Pack{.into = matrix,
                     .source = values.data(),
                     .source_dtype = DType::f32,
                     .place = place,
                     .outputs = intermediate});
      }
      return matrix;
    };
    const std::size_t bytes = matrix_bytes(dtype(), gate_up_outputs(intermediate), hidden);
    const Memory memory_here(device(), bytes), memory_there(cpu(), bytes);
    const Matrix gate_up_here = make(device(), memory_here), gate_up_there = make(cpu(), memory_there);
    const auto values = random_floats(std::size_t(intermediate) * std::size_t(hidden), 8, 0.02f);
    const Weight here(device(), dtype(), hidden, intermediate, values);
    const Weight there(cpu(), dtype(), hidden, intermediate, values);
    for (const int rows : {1, 8, 13, 24, 32, 39, 48, 64, 100}) {
      const auto x = random_floats(std::size_t(rows) * std::size_t(hidden), 9);
      const std::vector<float> nothing(std::size_t(rows) * std::size_t(intermediate), NAN);
      const Rows x_here(device(), dtype(), rows, hidden, x), x_there(cpu(), dtype(), rows, hidden, x);
      Rows y_here(device(), DType::f32, rows, hidden), y_there(cpu(), DType::f32, rows, hidden);
      Rows a_here(device(), dtype(), rows, intermediate, nothing),
          a_there(cpu(), dtype(), rows, intermediate);
      run(device(), Mlp{y_here.floats(), x_here.data(), a_here.data(), gate_up_here, here.matrix, rows});
      run(cpu(), Mlp{y_there.floats(), x_there.data(), a_there.data(), gate_up_there, there.matrix, rows});
      const std::string what = std::to_string(rows) + "x" + std::to_string(hidden);
      expect_near(a_here, a_there, limit(), what);
      expect_near(y_here, y_there, limit(), what);
    }
  }
}

TEST_P(LinearOnCuda, QueriesKeysAndValues) {
  struct Heads {
    int hidden, heads, kv_heads, head_dim;
  };
  for (const Heads& s : std::vector<Heads>{
           {1024, 16, 2, 128}, {576, 9, 3, 64}, {2560, 20, 4, 128}, {96, 5, 1, 40}, {64, 3, 1, 6}}) {
    const int outputs = (s.heads + 2 * s.kv_heads) * s.head_dim, width = s.heads * s.head_dim;
    const auto values = random_floats(std::size_t(outputs) * std::size_t(s.hidden), 10, 0.05f);
    const Weight weight(device(), dtype(), outputs, s.hidden, values);
    const bool halves = cuda::swizzled(dtype(), s.head_dim);
    for (const int rows : {1, 7, 9, 20, 25, 40, 47, 64, 90}) {
      if (s.hidden > 2048 && rows > 7) break;
      const auto angles = random_floats(std::size_t(rows) * std::size_t(s.head_dim), 11);
      const Rows x(device(), dtype(), rows, s.hidden,
                   random_floats(std::size_t(rows) * std::size_t(s.hidden), 12));
      Rows q(device(), dtype(), rows, width, std::vector<float>(std::size_t(rows) * std::size_t(width), NAN));
      KvCache kv{.dtype = dtype(), .layers = 2, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
      constexpr int kBlocks = 3;
      const Memory memory(device(), kv.block_bytes() * kBlocks);
      kv.data = memory.as();
      std::vector<KvSlot> slots;
      for (int r = 0; r < rows; ++r) {
        slots.push_back({r % 9 == 5 ? kPaddingBlock : (r / 40 + 1) % kBlocks, r * 27 % kBlockTokens});
      }
      run(device(), QkvRopeKvWrite{.q = q.data(),
                                   .x = x.data(),
                                   .weight = weight.matrix,
                                   .rope = device().put(angles),
                                   .kv = kv,
                                   .layer = 1,
                                   .heads = s.heads,
                                   .batch = {.slots = device().put(slots), .count = rows, .rows = rows}});
      std::vector<float> expected(memory.bytes() / size_of(dtype()));  // what nobody writes stays zero
      double largest = 0;
      for (int r = 0; r < rows; ++r) {
        std::vector<double> y(static_cast<std::size_t>(outputs));
        for (int o = 0; o < outputs; ++o)
          y[std::size_t(o)] = weight.dot(o, [&](int i) { return x.at(r, i); });
        for (int o = 0; o < outputs; ++o) {
          const int d = o % s.head_dim, head = o / s.head_dim, even = o / 2 * 2;
          const float* angle = &angles[std::size_t(r * s.head_dim + d / 2 * 2)];
          double value = y[std::size_t(o)];
          if (head < s.heads + s.kv_heads) {
            value = d % 2 == 0 ? y[std::size_t(even)] * angle[0] - y[std::size_t(even + 1)] * angle[1]
                               : y[std::size_t(even + 1)] * angle[0] + y[std::size_t(even)] * angle[1];
          }
          largest = std::max(largest, std::abs(value));
          if (head < s.heads) {
            ASSERT_NEAR(q.at(r, o), value, limit() * std::max(1.0, std::abs(value)))
                << rows << " rows, output " << o;
          } else if (const KvSlot slot = slots[std::size_t(r)]; slot.block != kPaddingBlock) {
            const int kv_head = (head - s.heads) % s.kv_heads;
            const std::size_t piece = head < s.heads + s.kv_heads ? kv.key_offset(slot.block, 1, kv_head)
                                                                  : kv.value_offset(slot.block, 1, kv_head);
            expected[piece / size_of(dtype()) +
                     std::size_t(cuda::kv_index(halves, s.head_dim, slot.offset, d))] = float(value);
          }
        }
      }
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(load_element(memory.host(), dtype(), i), expected[i], limit() * largest) << i;
      }
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
