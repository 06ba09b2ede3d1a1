// Scales of groups of int4: what group_scale() promises, and products on the GPU with scales that it did not
// make.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/cuda/product/linear.h"
#include "kernels/device_under_test.h"
#include "kernels/pack.h"
#include "kernels/quantize.h"

namespace troupe::kernels {
namespace {

bool is_bf16(double number) {
  const auto single = static_cast<float>(number);
  return static_cast<double>(single) == number && bf16_to_float(float_to_bf16(single)) == single;
}

TEST(GroupScale, TimesACodeIsABf16) {
  int scales = 0;
  for (std::uint32_t upper = 0; upper < 0x7f80; ++upper) {  // every bf16 that is finite and not negative
    const auto scale = std::bit_cast<float>(upper << 16);
    if (group_scale(scale) != scale) continue;
    ++scales;
    for (int code = -8; code <= 7; ++code) {
      const double product = code * static_cast<double>(scale);
      if (std::abs(product) > static_cast<double>(std::numeric_limits<float>::max())) continue;
      ASSERT_TRUE(is_bf16(product)) << code << " * " << scale;
    }
  }
  EXPECT_EQ(scales, 255 * 16);
  EXPECT_FALSE(is_bf16(7.0 * (2 - 0x1p-5)));  // why it has no sixth bit
}

TEST(GroupScale, EveryNumberIsWithinHalfAScaleOfItsCode) {
  const WeightFormat format{WeightKind::int4, DType::bf16, 32};
  for (int i = 0; i < 4096; ++i) {
    const float largest = 1 + static_cast<float>(i) / 4096, scale = scale_for(format, largest);
    ASSERT_EQ(scale, group_scale(scale));
    ASSERT_LE(scale, largest / 7);
    for (const float number : {largest, -largest, 0.93f * largest, 0.5f * largest, 0.01f * largest}) {
      const auto code = static_cast<float>(code_of(number, scale, kLargestInt4));
      ASSERT_LE(std::abs(number - code * scale), 0.5001f * scale) << number << " of " << largest;
    }
  }
  EXPECT_TRUE(std::isnan(scale_for(format, std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(scale_for(format, 0), 0);
}

// Row i of x is 1 for input i alone, so that an output is one weight as the product has it.
TEST(GroupScale, OfAFileMayRoundAProductOnTensorCores) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  constexpr int kOutputs = 256, kInputs = 64;
  DeviceUnderTest device(shared_cuda(false));
  const WeightFormat format{WeightKind::int4, DType::bf16, 32};
  std::vector<std::uint8_t> codes(std::size_t{kOutputs} * kInputs / 2);
  std::vector<float> scales(std::size_t{kOutputs} * 2);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 37 + i / 256);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 1 + static_cast<float>(i % 128) / 128;
  const MemoryBytes code_file(codes.data()), scale_file(scales.data());
  const Memory memory(device, matrix_bytes(format, kOutputs, kInputs));
  const Matrix matrix{memory.as(), format, kOutputs, kInputs};
  run(device, Pack{.into = matrix,
                   .file = &code_file,
                   .source_stride = kInputs,
                   .outputs = kOutputs,
                   .scales = {.file = &scale_file, .dtype = DType::f32, .stride = 2}});
  std::vector<float> identity(std::size_t{kInputs} * kInputs);
  for (std::size_t i = 0; i < kInputs; ++i) identity[i * kInputs + i] = 1;
  Rows x(device, DType::bf16, kInputs, kInputs, identity);
  for (const bool tensor_cores : {false, true}) {
    Rows out(device, DType::f32, kInputs, kOutputs);
    const cuda::Linear linear{.weight = matrix,
                              .x = x.data(),
                              .rows = kInputs,
                              .x_rows = kInputs,
                              .ending = cuda::Ending::store_f32,
                              .out = out.data()};
    device.call([&] {
      if (tensor_cores) {
        cuda::run_stream(device.cuda(), linear,
                         cuda::stream_plan(shape_of(linear), cuda::traits_of(device.cuda())));
      } else {
        run_generic(device.cuda(), linear);
      }
    });
    int rounded = 0;
    for (int o = 0; o < kOutputs; ++o) {
      for (int i = 0; i < kInputs; ++i) {
        const auto at = static_cast<std::size_t>(o * kInputs + i);
        const int code = (codes[at / 2] >> (i % 2 * 4) & 15) - 8;
        const float scale = scales[at / 32], weight = static_cast<float>(code) * scale, got = out.at(i, o);
        if (tensor_cores && group_scale(scale) != scale) {
          ASSERT_LE(std::abs(got - weight), 0x1p-8f * std::abs(weight)) << code << " * " << scale;
          rounded += got != weight;
        } else {
          ASSERT_EQ(got, weight) << code << " * " << scale;
        }
      }
    }
    EXPECT_EQ(rounded > 0, tensor_cores);
  }
}

}  // namespace
}  // namespace troupe::kernels
