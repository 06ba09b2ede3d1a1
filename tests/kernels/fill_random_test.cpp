#include "kernels/fill_random.h"

#include "kernels/cuda/product/layout.h"
#include "kernels/device_under_test.h"
#include "kernels/embed.h"

namespace troupe::kernels {
namespace {

class Fill : public OpTest {};
TROUPE_ALL_DEVICES(Fill);

std::vector<float> unpacked(DeviceUnderTest& device, const Matrix& matrix) {
  std::vector<TokenId> ids;
  for (int o = 0; o < matrix.outputs; ++o) ids.push_back(o);
  const Rows out(device, DType::f32, matrix.outputs, matrix.inputs);
  run(device, Embed{.out = out.floats(), .tokens = device.put(ids), .table = matrix, .rows = matrix.outputs});
  std::vector<float> values;
  for (int o = 0; o < matrix.outputs; ++o) {
    for (int i = 0; i < matrix.inputs; ++i) values.push_back(out.at(o, i));
  }
  return values;
}

TEST_P(Fill, IsNormalWithTheRequestedDeviation) {
  constexpr int kOutputs = 300, kInputs = 401;
  const Memory memory(device(), matrix_bytes(dtype(), kOutputs, kInputs));
  const Matrix matrix{memory.as(), dtype(), kOutputs, kInputs};
  run(device(), FillRandom{.into = matrix, .outputs = kOutputs, .seed = 1, .deviation = 0.02f});
  const auto values = unpacked(device(), matrix);
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  int within_one = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double v = values[i] / 0.02;
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
    within_one += std::abs(v) < 1;
    if (i > 0) neighbours += v * values[i - 1] / 0.02;
  }
  const auto n = double(values.size());
  EXPECT_NEAR(sum / n, 0, 0.02);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(fourth / n, 3, 0.15);
  EXPECT_NEAR(within_one / n, 0.6827, 0.01);
  EXPECT_NEAR(neighbours / n, 0, 0.02);
}

TEST_P(Fill, DependsOnlyOnSeedAndPlaceInTheTensor) {
  constexpr int kInputs = 21, kRows = 50;
  const Memory a(device(), matrix_bytes(dtype(), kRows, kInputs)),
      b(device(), matrix_bytes(dtype(), 90, kInputs));
  const Memory c(device(), matrix_bytes(dtype(), gate_up_outputs(kRows), kInputs));
  const Matrix alone{a.as(), dtype(), kRows, kInputs}, second{b.as(), dtype(), 90, kInputs};
  const Matrix gate_up{c.as(), dtype(), gate_up_outputs(kRows), kInputs};
  run(device(), FillRandom{.into = alone, .outputs = kRows, .seed = 3});
  run(*device_with(3), FillRandom{.into = second, .first = 40, .outputs = kRows, .seed = 3});
  run(device(), FillRandom{.into = gate_up, .place = Place::up, .outputs = kRows, .seed = 3});
  const auto expected = unpacked(device(), alone), shifted = unpacked(device(), second);
  const auto interleaved = unpacked(device(), gate_up);
  const auto up_row = [&](int o) { return where().cuda ? cuda::up_row(o) : (o / 32 * 2 + 1) * 32 + o % 32; };
  for (int o = 0; o < kRows; ++o) {
    for (int i = 0; i < kInputs; ++i) {
      const float value = expected[std::size_t(o * kInputs + i)];
      ASSERT_EQ(shifted[std::size_t((40 + o) * kInputs + i)], value);
      ASSERT_EQ(interleaved[std::size_t(up_row(o) * kInputs + i)], value);
    }
  }
  run(device(), FillRandom{.into = alone, .outputs = kRows, .seed = 4});
  EXPECT_NE(unpacked(device(), alone), expected);
}

TEST_P(Fill, IsTheSameOnEveryDevice) {
  constexpr int kOutputs = 40, kInputs = 30;
  DeviceUnderTest baseline(
      std::make_unique<Cpu>(CpuOptions{.threads = 1, .pin = false, .isa = Isa::baseline}));
  std::vector<float> made[2];
  for (DeviceUnderTest* d : {&baseline, &device()}) {
    const Memory memory(*d, matrix_bytes(dtype(), kOutputs, kInputs));
    const Matrix matrix{memory.as(), dtype(), kOutputs, kInputs};
    run(*d, FillRandom{.into = matrix, .outputs = kOutputs, .seed = 77});
    made[d == &baseline ? 0 : 1] = unpacked(*d, matrix);
  }
  EXPECT_EQ(made[0], made[1]);
}

}  // namespace
}  // namespace troupe::kernels
