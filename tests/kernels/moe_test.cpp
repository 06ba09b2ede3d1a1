// The mixture-of-experts block: the router against hand numbers, the whole against sums in double precision,
// and a row's bits alone, among others, and with any number of threads.
#include "kernels/moe.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/fill_random.h"
#include "kernels/moe_layer.h"

namespace troupe::kernels {
namespace {

class MoeTest : public OpTest {};
TROUPE_ALL_DEVICES(MoeTest);

// Experts whose answers tell them apart: with x = (1, 1) gate and up are sums of their rows, intermediate 1.
// expert e gives silu(1) * 2^e in column 0.
TEST_P(MoeTest, HandNumbers) {
  const float z[] = {1, 2, 0.5f, -1};
  const Weight router(device(), DType::f32, 4, 2, {z[0], 0, z[1], 0, z[2], 0, z[3], 0});
  const int outputs = gate_up_outputs(1);
  const std::size_t gate_up_bytes = matrix_bytes(dtype(), outputs, 2);
  const Memory gate_up_memory(device(), 5 * gate_up_bytes),
      down_memory(device(), 5 * matrix_bytes(dtype(), 2, 1));
  const MatrixStack gate_up{{gate_up_memory.as(), dtype(), outputs, 2}, 5};
  const MatrixStack down{{down_memory.as(), dtype(), 2, 1}, 5};
  for (int g = 0; g < 5; ++g) {
    const std::vector<float> one{1, 0}, power{float(1 << g), 0};
    Pack pack{.into = gate_up.at(g),
              .source = one.data(),
              .source_dtype = DType::f32,
              .place = Place::gate,
              .outputs = 1};
    run(device(), pack);
    pack.place = Place::up;
    run(device(), pack);
    run(device(), Pack{.into = down.at(g), .source = power.data(), .source_dtype = DType::f32, .outputs = 2});
  }
  const Rows x(device(), dtype(), 1, 2, {1, 0});
  const double silu = 1 / (1 + std::exp(-1.0));
  const auto answer = [&](std::vector<float> bias, int top_k, int shared,
                          std::vector<std::int32_t> expected) {
    const Rows b(device(), DType::f32, 1, 4, bias);
    Rows y(device(), DType::f32, 1, 2, {100, -3});
    const Memory chosen(device(), sizeof(std::int32_t) * std::size_t(top_k));
    MatrixStack some_gate_up = gate_up, some_down = down;
    some_gate_up.count = some_down.count = 4 + shared;
    run(device(), Moe{.residual = y.floats(),
                      .x = x.data(),
                      .router = router.matrix,
                      .bias = b.floats(),
                      .gate_up = some_gate_up,
                      .down = some_down,
                      .experts = 4,
                      .shared = shared,
                      .top_k = top_k,
                      .rows = 1,
                      .chosen = chosen.as<std::int32_t>()});
    const auto* first = chosen.host<std::int32_t>();
    const std::vector<std::int32_t> got(first, first + top_k);
    EXPECT_EQ(got, expected);
    EXPECT_EQ(y.at(0, 1), -3);
    return (double(y.at(0, 0)) - 100) / silu;
  };
  const double tolerance = 1e-4 + 9 * rounding_unit(dtype());
  // p = 0.224208 0.609460 0.135989 0.030343; the bias changes the choice, never the weights.
  EXPECT_NEAR(answer({0.5f, 0, 0, 1}, 2, 0, {0, 3}), 0.880797 * 1 + 0.119203 * 8, tolerance);
  EXPECT_NEAR(answer({0, 0, 0, 0}, 2, 0, {0, 1}), 0.268941 * 1 + 0.731059 * 2, tolerance);
  EXPECT_NEAR(answer({0, 0, 0, 0}, 1, 0, {1}), 2, tolerance);
  EXPECT_NEAR(answer({9, -9, 3, 7}, 3, 0, {0, 2, 3}), (0.224208 + 4 * 0.135989 + 8 * 0.030343) / 0.390540,
              tolerance);
  EXPECT_NEAR(answer({0, 0, 0, 0}, 4, 0, {0, 1, 2, 3}), 0.224208 + 2 * 0.609460 + 4 * 0.135989 + 8 * 0.030343,
              tolerance);
  EXPECT_NEAR(answer({0.5f, 0, 0, 1}, 2, 1, {0, 3}), 0.880797 + 0.119203 * 8 + 16, 2 * tolerance);
}

TEST_P(MoeTest, TheLowestOfEquals) {
  MoeCase c{.hidden = 8,
            .intermediate = 4,
            .experts = 7,
            .shared = 0,
            .top_k = 3,
            .rows = 2,
            .router_deviation = 0};
  MoeLayer layer(device(), dtype(), c);
  for (int e = 0; e < 7; ++e) layer.bias.set(0, e, e == 5 ? 0.5f : 0.25f);
  const Rows x(device(), dtype(), 2, 8, random_floats(16, 3));
  const Rows y(device(), DType::f32, 2, 8);
  const Memory chosen(device(), 6 * sizeof(std::int32_t));
  Moe op = layer.op(y, x.data(), 2);
  op.chosen = chosen.as<std::int32_t>();
  run(device(), op);
  const std::vector<std::int32_t> expected{0, 1, 5, 0, 1, 5};
  const auto* got = chosen.host<std::int32_t>();
  EXPECT_EQ(std::vector<std::int32_t>(got, got + 6), expected);
}

TEST_P(MoeTest, AnyShapeAgainstDoublePrecision) {
  for (const MoeCase& c :
       {MoeCase{64, 32, 8, 0, 2, 1}, MoeCase{48, 80, 8, 2, 2, 3}, MoeCase{33, 100, 7, 1, 3, 14},
        MoeCase{100, 40, 5, 2, 5, 29}, MoeCase{32, 16, 64, 2, 6, 9}, MoeCase{40, 31, 33, 1, 1, 50}}) {
    const MoeLayer layer(device(), dtype(), c);
    const Rows x(device(), dtype(), c.rows, c.hidden, random_floats(std::size_t(c.rows * c.hidden), 7));
    const auto before = random_floats(std::size_t(c.rows * c.hidden), 8);
    Rows y(device(), DType::f32, c.rows, c.hidden, before);
    const Memory chosen(device(), sizeof(std::int32_t) * std::size_t(c.rows * c.top_k));
    Moe op = layer.op(y, x.data(), c.rows);
    op.chosen = chosen.as<std::int32_t>();
    run(device(), op);
    for (int r = 0; r < c.rows; ++r) {
      const MoeLayer::Choice choice = layer.choose(x, r);
      ASSERT_GT(choice.gap, 1e-6) << "the case decides nothing";
      const std::int32_t* got = chosen.host<std::int32_t>() + r * c.top_k;
      ASSERT_EQ(std::vector<int>(got, got + c.top_k), choice.experts) << "row " << r;
      std::vector<double> expected(before.begin() + r * c.hidden, before.begin() + (r + 1) * c.hidden);
      double sizes = 0;
      for (int k = 0; k < c.top_k + c.shared; ++k) {
        const bool routed = k < c.top_k;
        const double weight = routed ? choice.weights[std::size_t(k)] : 1;
        double size = 0;
        const auto part =
            layer.expert(routed ? choice.experts[std::size_t(k)] : c.experts + k - c.top_k, x, r, size);
        sizes += weight * size;
        for (int i = 0; i < c.hidden; ++i) expected[std::size_t(i)] += weight * part[std::size_t(i)];
      }
      for (int i = 0; i < c.hidden; ++i) {
        ASSERT_NEAR(y.at(r, i), expected[std::size_t(i)],
                    1e-5 * (1 + sizes) + 1.1 * rounding_unit(dtype()) * sizes)
            << "row " << r << " column " << i << " of " << c.rows << "x" << c.hidden;
      }
    }
  }
}

// Correction biases of released models: a level of 22 … 63 in each layer and a spread of about a hundredth
// around it. A score that is rounded to fewer bits than fp32 has would lose the spread; half precision is the
// level alone.
TEST_P(MoeTest, TheChoiceKeepsTheSpreadOfBiasesAtAHighLevel) {
  for (const auto& [level, rows] : {std::pair{22.0f, 9}, {47.3f, 40}, {63.0f, 300}}) {
    const MoeCase c{96, 32, 64, 1, 6, rows};
    MoeLayer layer(device(), dtype(), c), flat(device(), dtype(), c);
    const auto spread = random_floats(64, 11, 0.01f);
    for (int e = 0; e < c.experts; ++e) {
      layer.bias.set(0, e, level + spread[std::size_t(e)]);
      flat.bias.set(0, e, level);
    }
    const Rows x(device(), dtype(), rows, c.hidden, random_floats(std::size_t(rows * c.hidden), 7));
    const Rows y(device(), DType::f32, rows, c.hidden);
    const Memory chosen(device(), sizeof(std::int32_t) * std::size_t(rows * c.top_k));
    Moe op = layer.op(y, x.data(), rows);
    op.chosen = chosen.as<std::int32_t>();
    run(device(), op);
    int clear = 0, other = 0;
    for (int r = 0; r < rows; ++r) {
      const MoeLayer::Choice choice = layer.choose(x, r);
      if (choice.gap < 2e-5) continue;  // the scores have steps of up to 3.8e-6
      ++clear;
      other += choice.experts != flat.choose(x, r).experts;
      const std::int32_t* got = chosen.host<std::int32_t>() + r * c.top_k;
      ASSERT_EQ(std::vector<int>(got, got + c.top_k), choice.experts) << "row " << r << ", level " << level;
    }
    EXPECT_GT(clear, rows * 4 / 5);
    EXPECT_GT(other, rows / 5) << "without the spread they would be others";
  }
}

TEST_P(MoeTest, ARowsBitsDependOnThatRowAlone) {
  const MoeCase c{96, 64, 9, 1, 3, 200};
  const MoeLayer layer(invariant_device(), dtype(), c);
  const Rows x(invariant_device(), dtype(), c.rows, c.hidden,
               random_floats(std::size_t(c.rows * c.hidden), 5));
  Rows all(invariant_device(), DType::f32, c.rows, c.hidden);
  run(invariant_device(), layer.op(all, x.data(), c.rows));
  for (const int threads : {1, 2, 3}) {
    const auto other = device_at(where(), threads, true);
    for (const int rows : {1, 2, 7, 25, 130}) {
      for (int first = 0; first + rows <= c.rows; first += 67) {
        Rows some(*other, DType::f32, rows, c.hidden);
        run(*other, layer.op(some, x.device_row(first), rows));
        for (int r = 0; r < rows; ++r) {
          ASSERT_EQ(std::memcmp(some.row(r), all.row(first + r), some.row_bytes()), 0)
              << "row " << first + r << " among " << rows << " with " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(MoeTest, MoreRowsThanOnePassAndExpertsThatNoneChooses) {
  const MoeCase c{32, 32, 6, 2, 2, 2100, 0.01f};
  MoeLayer layer(invariant_device(), dtype(), c);
  for (int e = 0; e < 6; ++e) layer.bias.set(0, e, e == 1 || e == 4 ? 5 : 0);
  const Rows x(invariant_device(), dtype(), c.rows, c.hidden,
               random_floats(std::size_t(c.rows * c.hidden), 5));
  Rows all(invariant_device(), DType::f32, c.rows, c.hidden);
  const Memory chosen(invariant_device(), sizeof(std::int32_t) * std::size_t(c.rows * c.top_k));
  Moe op = layer.op(all, x.data(), c.rows);
  op.chosen = chosen.as<std::int32_t>();
  run(invariant_device(), op);
  for (int r = 0; r < c.rows; ++r) {
    ASSERT_EQ(chosen.host<std::int32_t>()[2 * r], 1);
    ASSERT_EQ(chosen.host<std::int32_t>()[2 * r + 1], 4);
  }
  for (const int r : {0, 1, 1023, 2047, 2048, 2099}) {
    Rows one(invariant_device(), DType::f32, 1, c.hidden);
    run(invariant_device(), layer.op(one, x.device_row(r), 1));
    ASSERT_EQ(std::memcmp(one.row(0), all.row(r), one.row_bytes()), 0) << r;
  }
}

TEST_P(MoeTest, PaddingRowsTouchNothing) {
  const MoeCase c{40, 48, 8, 2, 2, 5};
  const MoeLayer layer(device(), dtype(), c);
  const Rows x(device(), dtype(), c.rows, c.hidden, random_floats(std::size_t(c.rows * c.hidden), 5));
  Memory slots(device(), sizeof(KvSlot) * std::size_t(c.rows));
  const Memory chosen(device(), 10 * sizeof(std::int32_t));
  for (int r = 0; r < c.rows; ++r) slots.change<KvSlot>()[r] = {r < 3 ? r : kPaddingBlock, 0};
  Rows padded_rows(device(), DType::f32, c.rows, c.hidden), plain(device(), DType::f32, 3, c.hidden);
  Moe op = layer.op(padded_rows, x.data(), c.rows);
  op.slots = slots.as<KvSlot>();
  op.chosen = chosen.as<std::int32_t>();
  run(device(), op);
  run(device(), layer.op(plain, x.data(), 3));
  for (int r = 0; r < c.rows; ++r) {
    for (int i = 0; i < c.hidden; ++i) ASSERT_EQ(padded_rows.at(r, i), r < 3 ? plain.at(r, i) : 0.0f);
  }
  for (int k = 6; k < 10; ++k) EXPECT_EQ(chosen.host<std::int32_t>()[k], -1);
}

TEST_P(MoeTest, NothingWithoutRows) {
  const MoeLayer layer(device(), dtype(), {16, 16, 4, 0, 2, 0});
  const Rows x(device(), dtype(), 1, 16, random_floats(16, 5));
  const std::vector<float> before(16, -3);
  Rows y(device(), DType::f32, 1, 16, before);
  run(device(), layer.op(y, x.data(), 0));
  for (int i = 0; i < 16; ++i) EXPECT_EQ(y.at(0, i), -3) << i;
  run(device(), layer.op(y, x.data(), 1));
  int changed = 0;
  for (int i = 0; i < 16; ++i) changed += y.at(0, i) != -3;
  EXPECT_EQ(changed, 16) << "the device still works";
}

TEST_P(MoeTest, NotANumberStaysInItsRow) {
  const MoeCase c{32, 32, 4, 1, 2, 2};
  const MoeLayer layer(device(), dtype(), c);
  Rows x(device(), dtype(), 2, 32, random_floats(64, 5));
  x.set(0, 3, std::nanf(""));
  Rows y(device(), DType::f32, 2, 32);
  run(device(), layer.op(y, x.data(), 2));
  EXPECT_TRUE(std::isnan(y.at(0, 0)));
  for (int i = 0; i < 32; ++i) EXPECT_TRUE(std::isfinite(y.at(1, i)));
}

/// A layer of random weights, the same numbers on every device.
template <class D>
class RandomLayer {
 public:
  RandomLayer(D& device, DType dtype, const MoeCase& c) : device_(device), case_(c) {
    const int groups = c.experts + c.shared;
    const auto matrix = [&](DType type, int outputs, int inputs, int count) {
      void* memory = device.alloc(std::size_t(count) * matrix_bytes(type, outputs, inputs));
      if (memory == nullptr) throw std::runtime_error("no memory for a test");
      memory_.push_back(memory);
      return Matrix{memory, type, outputs, inputs};
    };
    gate_up_ = {matrix(dtype, gate_up_outputs(c.intermediate), c.hidden, groups), groups};
    down_ = {matrix(dtype, c.hidden, c.intermediate, groups), groups};
    router_ = matrix(DType::f32, c.experts, c.hidden, 1);
    bias_ = matrix(DType::f32, 1, c.experts, 1);
    const float deviation = 1 / std::sqrt(float(c.hidden));
    for (int g = 0; g < groups; ++g) {
      FillRandom fill{.into = gate_up_.at(g),
                      .place = Place::gate,
                      .outputs = c.intermediate,
                      .seed = std::uint64_t(3 * g),
                      .deviation = deviation};
      run(device, fill);
      fill.place = Place::up;
      fill.seed += 1;
      run(device, fill);
      run(device,
          FillRandom{
              .into = down_.at(g), .outputs = c.hidden, .seed = fill.seed + 1, .deviation = deviation});
    }
    run(device, FillRandom{.into = router_, .outputs = c.experts, .seed = 7777, .deviation = 2 * deviation});
  }
  ~RandomLayer() {
    for (void* memory : memory_) device_.free(memory);
  }
  RandomLayer(const RandomLayer&) = delete;
  RandomLayer& operator=(const RandomLayer&) = delete;

  struct Answer {
    std::vector<float> rows;  // (rows, hidden)
    std::vector<std::int32_t> chosen;
  };
  Answer answer(const std::vector<std::byte>& x, int rows) {
    const std::size_t numbers = std::size_t(rows) * std::size_t(padded(case_.hidden));
    const std::size_t choices = std::size_t(rows) * std::size_t(case_.top_k);
    void* on_device = device_.alloc(x.size());
    auto* residual = static_cast<float*>(device_.alloc(numbers * sizeof(float)));
    auto* chosen = static_cast<std::int32_t*>(device_.alloc(choices * sizeof(std::int32_t)));
    device_.upload(on_device, x.data(), x.size());
    run(device_, Moe{.residual = residual,
                     .x = on_device,
                     .router = router_,
                     .bias = static_cast<const float*>(bias_.data),
                     .gate_up = gate_up_,
                     .down = down_,
                     .experts = case_.experts,
                     .shared = case_.shared,
                     .top_k = case_.top_k,
                     .rows = rows,
                     .chosen = chosen});
    Answer answer{std::vector<float>(numbers), std::vector<std::int32_t>(choices)};
    device_.download(answer.rows.data(), residual, numbers * sizeof(float));
    device_.download(answer.chosen.data(), chosen, choices * sizeof(std::int32_t));
    device_.sync();
    device_.free(on_device);
    device_.free(residual);
    device_.free(chosen);
    return answer;
  }

 private:
  D& device_;
  const MoeCase case_;
  MatrixStack gate_up_, down_;
  Matrix router_, bias_;
  std::vector<void*> memory_;
};

TEST_P(MoeTest, LargeShapesOnTheGpuAsOnTheCpu) {
  if (!where().cuda) GTEST_SKIP() << "the CPU is the reference";
  Cpu cpu({.threads = 0, .pin = false});
  for (const MoeCase& c :
       {MoeCase{1024, 512, 64, 2, 6, 0}, MoeCase{576, 192, 8, 0, 8, 0}, MoeCase{512, 96, 160, 1, 12, 0}}) {
    RandomLayer<Cpu> expected_of(cpu, dtype(), c);
    RandomLayer<Cuda> usual(shared_cuda(false), dtype(), c), invariant(shared_cuda(true), dtype(), c);
    for (const int rows : {1, 5, 16, 17, 64, 130, 256, 300, 1100}) {
      std::vector<std::byte> x(std::size_t(rows) * std::size_t(padded(c.hidden)) * size_of(dtype()));
      const auto values =
          random_floats(std::size_t(rows) * std::size_t(padded(c.hidden)), std::uint32_t(rows));
      for (std::size_t i = 0; i < values.size(); ++i) store_element(x.data(), dtype(), i, values[i]);
      const auto expected = expected_of.answer(x, rows);
      for (auto* layer : {&usual, &invariant}) {
        const auto got = layer->answer(x, rows);
        const std::size_t k = std::size_t(c.top_k), width = std::size_t(padded(c.hidden));
        int otherwise = 0;
        double largest = 0, error = 0;
        for (std::size_t r = 0; r < std::size_t(rows); ++r) {
          if (std::memcmp(&got.chosen[r * k], &expected.chosen[r * k], k * sizeof(std::int32_t)) != 0) {
            ++otherwise;  // a tie but for the last bits of the scores
            continue;
          }
          for (std::size_t i = r * width; i < (r + 1) * width; ++i) {
            largest = std::max(largest, std::abs(double(expected.rows[i])));
            error = std::max(error, std::abs(double(got.rows[i]) - double(expected.rows[i])));
          }
        }
        EXPECT_LE(otherwise, rows / 200) << rows << " rows of " << c.hidden;
        EXPECT_LE(error / largest, dtype() == DType::f32 ? 1e-4 : 2e-2) << rows << " rows of " << c.hidden;
        const auto again = layer->answer(x, rows);
        EXPECT_EQ(std::memcmp(again.rows.data(), got.rows.data(), got.rows.size() * sizeof(float)), 0);
      }
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
