// The rotation and the codes of W4A8 experts' rows beside their definitions.
#include "kernels/cpu/static_inputs.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gpu/cpu.h"
#include "kernels/static_kv.h"

namespace troupe::kernels {
namespace {

std::vector<float> drawn(std::size_t count) {
  std::vector<float> values(count);
  std::uint32_t state = 7;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int>(state >> 16) - 32768) / 8192;
  }
  return values;
}

// Entry (i, j) of the Hadamard matrix in natural order is -1 to the number of ones in i & j.
TEST(StaticInputs, RotationIsTheHadamardMatrixOfEachBlock) {
  const Cpu device({.threads = 1, .pin = false});
  const Routines& r = routines(device.isa());
  const std::vector<float> x = drawn(2 * kHadamardBlock);
  std::vector<float> exact = x, rounded = x;
  rotate_blocks(r, DType::f32, exact.data(), exact.size());
  rotate_blocks(r, DType::bf16, rounded.data(), rounded.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    double sum = 0;
    const std::size_t block = i / kHadamardBlock * kHadamardBlock;
    for (std::size_t j = 0; j < kHadamardBlock; ++j)
      sum += std::popcount(i % kHadamardBlock & j) % 2 == 0 ? x[block + j] : -x[block + j];
    EXPECT_NEAR(exact[i], sum, 1e-3);
    EXPECT_NEAR(rounded[i], sum, 1.0);  // seven roundings to 8 bits of sums up to some 60
    EXPECT_EQ(rounded[i], bf16_to_float(float_to_bf16(rounded[i])));
  }
}

TEST(StaticInputs, CodesAreRoundedHalfAwayAndClamped) {
  std::vector<float> x(kDotInputs, 0.0f);
  const float numbers[] = {0.5f, -0.5f, 1.5f, 0.49999997f, -2.5f, 126.4f, 300, -300};
  const int codes[] = {1, -1, 2, 0, -3, 126, 127, -127};
  std::copy(std::begin(numbers), std::end(numbers), x.begin());
  alignas(OperandGroup) std::byte row[kDotInputs + sizeof(OperandGroup)];
  quantise_static(row, x.data(), x.size(), {1, 16});
  int sum = 0;
  for (std::size_t i = 0; i < std::size(codes); ++i) {
    EXPECT_EQ(static_cast<std::int8_t>(row[i]), codes[i]) << numbers[i];
    EXPECT_EQ(static_cast<std::int8_t>(static_kv_code(numbers[i], 1)), codes[i]) << numbers[i];
    sum += codes[i];
  }
  const auto& group = *reinterpret_cast<const OperandGroup*>(row + kDotInputs);
  EXPECT_EQ(group.scale, 16);
  EXPECT_EQ(group.correction, -8 * sum);
  x[3] = std::numeric_limits<float>::infinity();
  quantise_static(row, x.data(), x.size(), {1, 16});
  EXPECT_TRUE(std::isnan(group.scale));
}

}  // namespace
}  // namespace troupe::kernels
