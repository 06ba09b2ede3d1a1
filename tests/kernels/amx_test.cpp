// The set amx: products through tiles, on an emulation of the instructions where the machine has none. Tests
// of all ops run on it too (usable_isas()); here is what concerns tiles alone.
#include <algorithm>
#include <cstring>

#include "kernels/best_isa.h"
#include "kernels/cpu/linear.h"
#include "kernels/device_under_test.h"
#include "kernels/emulated_amx.h"
#include "kernels/lm_head.h"

namespace troupe::kernels {
namespace {

constexpr int kAmxRowCounts[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 65, 129};
constexpr int kMostAmxRows = 129;

class AmxProducts : public testing::Test {
 protected:
  void SetUp() override {
    if (!usable(Isa::amx)) GTEST_SKIP() << "neither AMX nor what its emulation needs";
  }
  static std::unique_ptr<DeviceUnderTest> device_with(int threads) {
    return device_at({.isa = Isa::amx}, threads);
  }
};

/// Logits of all rows at once, and of parts of them.
TEST_F(AmxProducts, ARowsBitsDoNotDependOnTheNumberOfRows) {
  const auto device = device_with(2);
  for (const auto& [outputs, inputs] : std::vector<std::array<int, 2>>{
           {16, 32}, {32, 64}, {33, 33}, {47, 31}, {70, 515}, {40, 1000}, {9, 1}, {34, 1054}}) {
    const Weight weight(*device, DType::bf16, outputs, inputs,
                        random_floats(std::size_t(outputs * inputs), 1, 0.05f));
    const Rows x(*device, DType::bf16, kMostAmxRows, inputs,
                 random_floats(std::size_t(kMostAmxRows * inputs), 2));
    Rows alone(*device, DType::f32, kMostAmxRows, outputs);
    for (int r = 0; r < kMostAmxRows; ++r) {
      run(*device, LmHead{.logits = alone.floats() + std::size_t(r) * alone.row_bytes() / sizeof(float),
                          .x = x.device_row(r),
                          .weight = weight.matrix,
                          .rows = 1});
    }
    for (const int rows : kAmxRowCounts) {
      const int first = (rows * 5) % (kMostAmxRows - rows + 1);
      Rows some(*device, DType::f32, rows, outputs);
      run(*device,
          LmHead{.logits = some.floats(), .x = x.device_row(first), .weight = weight.matrix, .rows = rows});
      for (int r = 0; r < rows; ++r) {
        ASSERT_EQ(std::memcmp(some.row(r), alone.row(first + r), some.row_bytes()), 0)
            << "row " << first + r << " among " << rows << ", " << outputs << " x " << inputs;
      }
    }
  }
}

TEST_F(AmxProducts, TilesAreReleasedAndShapesAreLoadedOnceForManyRows) {
  if (cpu_features().amx) GTEST_SKIP() << "counts what the emulation is asked";
  const auto device = device_with(1);
  constexpr int kOutputs = 32, kInputs = 1600;
  const Weight weight(*device, DType::bf16, kOutputs, kInputs, random_floats(kOutputs * kInputs, 5));
  const Rows x(*device, DType::bf16, 90, kInputs, random_floats(90 * kInputs, 6));
  Rows out(*device, DType::f32, 90, kOutputs);
  for (const int rows : {1, 20, 33, 90}) {
    const int before = shapes_loaded();
    run(*device, LmHead{.logits = out.floats(), .x = x.data(), .weight = weight.matrix, .rows = rows});
    EXPECT_EQ(shapes_loaded() - before, 1) << rows << " rows times one panel in several chunks";
    EXPECT_FALSE(has_shapes()) << rows;
  }
}

TEST(Amx, ItsCheckFindsWrongProducts) {
  if (!usable(Isa::amx)) GTEST_SKIP() << "neither AMX nor what its emulation needs";
  const Status right = check_amx();
  EXPECT_TRUE(right.ok()) << right.message;
  if (cpu_features().amx) return;  // the processor's products cannot be spoiled
  spoil_products(true);
  const Status wrong = check_amx();
  spoil_products(false);
  EXPECT_EQ(wrong.code, Code::internal);
  EXPECT_NE(wrong.message.find("expected"), std::string::npos) << wrong.message;
}

/// One row of one output: `x` times `weights`, in bf16, added to `sum` by one emulated instruction.
float emulated_dot(float sum, const std::vector<float>& x, const std::vector<float>& weights) {
  std::vector<unsigned short> operands, side(x.size() / 2 * 32);
  for (std::size_t i = 0; i < x.size(); ++i) {
    operands.push_back(float_to_bf16(x[i]));
    side[i / 2 * 32 + i % 2] = float_to_bf16(weights[i]);
  }
  float sums[16] = {sum};
  add_bf16_product(sums, operands.data(), side.data(), 1, int(x.size()));
  return sums[0];
}

// As Intel's manual has TDPBF16PS: this pins the emulation, which all other tests here rest on.
TEST(Amx, TheEmulationSumsAsTheManualSays) {
  if (!usable(Isa::amx)) GTEST_SKIP() << "neither AMX nor what its emulation needs";
  const float large = 0x1p24f, tiny = 0x1p-130f;  // tiny is subnormal
  EXPECT_EQ(emulated_dot(0, {large, 1, -large, 0}, {1, 1, 1, 1}), 1)
      << "numbers of even and odd inputs apart";
  EXPECT_EQ(emulated_dot(large, {1, 1}, {1, 1}), large + 2) << "the sum comes last";
  EXPECT_EQ(emulated_dot(large, {1, 0}, {1, 1}), large) << "ties to even";
  EXPECT_EQ(emulated_dot(large, {3, 0}, {1, 1}), large + 4) << "ties to even";
  EXPECT_EQ(emulated_dot(0, {0x1.fep0f, -0x1.fcp0f}, {0x1.fep0f, 1}), 0x1.fc02p1f - 0x1.fcp0f);
  EXPECT_EQ(emulated_dot(0, {tiny, 0}, {0x1p100f, 0}), 0) << "a subnormal operand";
  EXPECT_EQ(emulated_dot(0, {0x1p100f, 0}, {tiny, 0}), 0) << "a subnormal weight";
  EXPECT_EQ(emulated_dot(tiny, {0, 0}, {0, 0}), 0) << "a subnormal sum";
  EXPECT_EQ(emulated_dot(0, {0x1p-70f, 0}, {0x1p-60f, 0}), 0) << "a subnormal product";
  EXPECT_EQ(emulated_dot(0, {0x1p-60f, 0}, {0x1p-60f, 0}), 0x1p-120f);
  EXPECT_TRUE(std::isnan(emulated_dot(0, {std::nanf(""), 0}, {0, 0})));
}

// The first thing to look at on a processor that has AMX.
TEST(Amx, TheProcessorsBitsAreTheEmulations) {
  if (!cpu_features().amx) GTEST_SKIP() << "this machine has no AMX";
  constexpr int kRows = 19, kInputs = 120;
  constexpr auto kPitch = std::size_t(padded(kInputs));
  const auto numbers = random_floats(kRows * kPitch + kInputs * kPanel, 21);
  std::vector<std::uint16_t> x, panel;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    (i < kRows * kPitch ? x : panel).push_back(float_to_bf16(numbers[i]));
  std::vector<float> sums[2];
  for (const bool emulated : {false, true}) {
    const Routines& r = emulated ? emulated_amx_routines() : amx_routines();
    std::vector<float>& c = sums[emulated];
    c.assign(kRows * kPanel, 0.25f);
    const TileUse tiles(r);
    r.tile[static_cast<int>(DType::bf16)]({.x = x.data(),
                                           .ldx = kPitch,
                                           .panel = panel.data(),
                                           .inputs = kInputs,
                                           .rows = kRows,
                                           .c = c.data(),
                                           .ldc = kPanel,
                                           .accumulate = true});
  }
  EXPECT_EQ(std::memcmp(sums[0].data(), sums[1].data(), sums[0].size() * sizeof(float)), 0);
}

TEST(Amx, IsNotChosenWhereItIsEmulated) {
  if (cpu_features().amx) GTEST_SKIP() << "this machine has AMX";
  EXPECT_EQ(best_isa().isa, cpu_features().best);
  EXPECT_EQ(best_isa().why_not_amx, "");
}

TEST(TileCut, EqualCallsCoverEveryRowOnce) {
  for (const int most : {1, 3, 8, 12, 32}) {
    for (const bool equal : {false, true}) {
      for (int count = 0; count < 400; ++count) {
        const TileCut cut(7, 7 + count, {.most = most, .near = 0, .equal = equal});
        int next = 7;
        for (int t = 0; t < cut.tiles(); ++t) {
          ASSERT_EQ(cut.row(t) + cut.repeated(t), next) << count << " rows, " << most;
          ASSERT_GE(cut.row(t), 7);
          ASSERT_GT(cut.rows(t), cut.repeated(t));
          ASSERT_LE(cut.rows(t), most);
          if (equal) {
            ASSERT_EQ(cut.rows(t), cut.rows(0));
          }
          next = cut.row(t) + cut.rows(t);
        }
        ASSERT_EQ(next, 7 + count) << count << " rows, " << most;
      }
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
