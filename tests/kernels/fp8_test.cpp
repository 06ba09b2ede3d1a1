// fp8 on the GPU: codes and scales of weights and of activations bit for bit those of quantize.h and e4m3.h.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/add_rms_norm.h"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/device_under_test.h"
#include "kernels/drawn_numbers.h"
#include "kernels/fill_random.h"
#include "kernels/fp8_numbers.h"
#include "kernels/pack.h"
#include "kernels/quantise_rows.h"

namespace troupe::kernels::cuda {
namespace {

class Fp8 : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device_ = std::make_unique<DeviceUnderTest>(shared_cuda(false));
  }

  /// Codes are not compared where the scale is a NaN.
  static void expect_matrix(const Matrix& matrix, const Memory& memory, const Coded& expected, Place place,
                            int first, int outputs) {
    const auto* bytes = memory.host<std::uint8_t>();
    const auto* scales =
        reinterpret_cast<const float*>(bytes + weight_bytes(matrix.format, matrix.outputs, matrix.inputs));
    const int pitch = coded_stride(matrix.inputs), eights = padded(matrix.outputs) / kFp8ScaleOutputs;
    int failures = 0;
    for (int o = 0; o < outputs; ++o) {
      const int row = placed_row(place, first, o);
      for (int b = 0; b < expected.blocks; ++b) {
        const float scale = scales[b * eights + row / kFp8ScaleOutputs];
        if (!same(scale, expected.scale(o, b)) && ++failures <= 3)
          ADD_FAILURE() << "output " << o << ", block " << b << ": scale " << scale;
      }
      for (int i = 0; i < pitch; ++i) {
        const int code = bytes[std::size_t(row) * std::size_t(pitch) + std::size_t(i)];
        if (i < matrix.inputs && std::isnan(expected.scale(o, i / kFp8Block))) continue;
        const int wanted = i < matrix.inputs ? expected.codes[expected.index(o, i)] : 0;
        if (code != wanted && ++failures <= 3)
          ADD_FAILURE() << "output " << o << ", input " << i << ": code " << code << ", not " << wanted;
      }
    }
    ASSERT_EQ(failures, 0);
  }

  std::unique_ptr<DeviceUnderTest> device_;
};

TEST_F(Fp8, RowsBitForBit) {
  for (const DType dtype : all_dtypes()) {
    for (const int rows : {1, 3, 70}) {
      for (const int columns : {33, 128, 576, 1000, 1280, 2560}) {
        SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(rows) + " x " +
                     std::to_string(columns));
        const std::vector<float> numbers = numbers_of(rows, columns, dtype, 3);
        const Rows x(*device_, dtype, rows, columns, numbers);
        Memory memory(*device_, coded_bytes(rows, columns));
        std::memset(memory.change(), 0x5a, memory.bytes());
        QuantiseRows op{.x = x.data(), .dtype = dtype, .rows = rows, .cols = columns};
        lay_out(op, memory.as());
        device_->call([&] { run(device_->cuda(), op); });
        const Coded expected(rows, columns, 1, numbers);
        const auto* codes = memory.host<std::uint8_t>();
        const auto* scales = reinterpret_cast<const float*>(codes + rows * coded_stride(columns));
        for (int r = 0; r < rows; ++r) {
          for (int b = 0; b < expected.blocks; ++b)
            ASSERT_EQ(scales[r * expected.blocks + b], expected.scale(r, b)) << r << ", block " << b;
          for (int i = 0; i < coded_stride(columns); ++i) {
            ASSERT_EQ(codes[r * coded_stride(columns) + i],
                      i < columns ? expected.codes[expected.index(r, i)] : 0)
                << r << ", " << i;
          }
        }
      }
    }
  }
}

TEST_F(Fp8, ANormsCodesAreThoseOfItsRows) {
  for (const DType dtype : all_dtypes()) {
    for (const int columns : {33, 576, 2560, 9000}) {  // 9,000: more than the kernel holds in registers
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(columns));
      const int rows = 3;
      std::vector<float> numbers = random_floats(std::size_t(rows * columns), 2),
                         weight = random_floats(std::size_t(columns), 3);
      numbers[std::size_t(columns + columns - 1)] = INFINITY;
      for (float& w : weight) w = rounded_to(dtype, w);
      Rows residual(*device_, DType::f32, rows, columns, numbers), out(*device_, dtype, rows, columns);
      const Rows weights(*device_, DType::f32, 1, columns, weight);
      AddRmsNorm norm{.out = out.data(),
                      .residual = residual.floats(),
                      .weight = weights.floats(),
                      .dtype = dtype,
                      .rows = rows,
                      .cols = columns};
      QuantiseRows quantise{.x = out.data(), .dtype = dtype, .rows = rows, .cols = columns},
          of_norm = quantise;
      const Memory expected(*device_, coded_bytes(rows, columns)), alone(*device_, expected.bytes()),
          beside(*device_, expected.bytes());
      lay_out(quantise, expected.as());
      run(*device_, norm);
      device_->call([&] { run(device_->cuda(), quantise); });
      const std::string plain(reinterpret_cast<const char*>(out.row(0)), std::size_t(rows) * out.row_bytes());
      for (const Memory* memory : {&alone, &beside}) {
        lay_out(of_norm, memory->as());
        norm.codes = of_norm.codes;
        norm.scales = of_norm.scales;
        norm.out = memory == &alone ? nullptr : out.data();
        run(*device_, norm);
        EXPECT_EQ(std::memcmp(memory->host(), expected.host(), expected.bytes()), 0);
      }
      EXPECT_EQ(std::memcmp(out.row(0), plain.data(), plain.size()), 0);
    }
  }
}

TEST_F(Fp8, WeightsOfAnyOrderDtypeAndPlaceBitForBit) {
  for (const auto& [outputs, inputs] :
       std::vector<std::array<int, 2>>{{77, 33}, {130, 576}, {300, 1000}, {128, 1280}}) {
    for (const DType dtype : all_dtypes()) {
      const std::vector<float> numbers = numbers_of(outputs, inputs, dtype, 4);
      const Coded expected(outputs, inputs, kFp8Block, numbers);
      for (const bool transposed : {false, true}) {
        std::vector<std::byte> source(numbers.size() * size_of(dtype));
        for (int o = 0; o < outputs; ++o) {
          for (int i = 0; i < inputs; ++i) {
            const int at = transposed ? i * outputs + o : o * inputs + i;
            store_element(source.data(), dtype, std::size_t(at), numbers[expected.index(o, i)]);
          }
        }
        for (const Place place : {Place::rows, Place::gate, Place::up}) {
          SCOPED_TRACE(std::to_string(outputs) + " x " + std::to_string(inputs) + " " + to_string(dtype));
          const int first = place == Place::rows ? 40 : 0;
          const int all = place == Place::rows ? outputs + first : gate_up_outputs(outputs);
          const Memory memory(*device_, matrix_bytes(kFp8, all, inputs));
          const Matrix matrix{memory.as(), kFp8, all, inputs};
          run(*device_, Pack{.into = matrix,
                             .source = source.data(),
                             .source_dtype = dtype,
                             .transposed = transposed,
                             .place = place,
                             .first = first,
                             .outputs = outputs});
          expect_matrix(matrix, memory, expected, place, first, outputs);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// A part of a joined tensor, which begins within a block of outputs; with a NaN among codes and one among
// scales.
TEST_F(Fp8, StoredCodesAreTakenAsTheyAre) {
  for (const DType dtype : all_dtypes()) {
    for (const auto& [outputs, inputs, before] :
         std::vector<std::array<int, 3>>{{77, 33, 24}, {300, 576, 0}, {200, 1000, 120}, {8, 128, 8}}) {
      for (const Place place : {Place::rows, Place::gate, Place::up}) {
        SCOPED_TRACE(std::to_string(outputs) + " x " + std::to_string(inputs) + " " + to_string(dtype));
        const int tensor_outputs = before + outputs + 5, stride = inputs + 3;
        const std::vector<float> numbers = random_floats(std::size_t(tensor_outputs * inputs), 4, 0.05f);
        Coded tensor(tensor_outputs, inputs, kFp8Block, numbers);
        for (float& scale : tensor.scales) scale = rounded_to(dtype, scale);
        tensor.scales.front() = INFINITY;
        std::vector<std::uint8_t> codes(std::size_t(tensor_outputs * stride), 0x7f);
        for (int o = 0; o < tensor_outputs; ++o)
          std::memcpy(codes.data() + o * stride, tensor.codes.data() + tensor.index(o, 0),
                      std::size_t(inputs));
        const int bad = before + outputs - 1;  // an output with a NaN in its last block
        codes[std::size_t(bad * stride + inputs - 1)] = 0xff;
        std::vector<std::byte> scales(tensor.scales.size() * size_of(dtype));
        for (std::size_t i = 0; i < tensor.scales.size(); ++i)
          store_element(scales.data(), dtype, i, tensor.scales[i]);
        const MemoryBytes code_file(codes.data()), scale_file(scales.data());
        const int first = place == Place::rows ? 40 : 0;
        const int all = place == Place::rows ? outputs + first : gate_up_outputs(outputs);
        const Memory memory(*device_, matrix_bytes(kFp8, all, inputs));
        const Matrix matrix{memory.as(), kFp8, all, inputs};
        run(*device_,
            Pack{.into = matrix,
                 .file = &code_file,
                 .offset = std::uint64_t(before * stride),
                 .source_stride = stride,
                 .place = place,
                 .first = first,
                 .outputs = outputs,
                 .scales = {.file = &scale_file,
                            .offset = std::uint64_t(before / kFp8Block * tensor.blocks) * size_of(dtype),
                            .dtype = dtype,
                            .stride = tensor.blocks,
                            .first_in_block = before % kFp8Block}});
        // As if each eight outputs had scales of their own.
        std::vector<float> part(numbers.begin() + before * inputs,
                                numbers.begin() + (before + outputs) * inputs);
        Coded expected(outputs, inputs, kFp8ScaleOutputs, part);
        for (int o = 0; o < outputs; ++o) {
          std::memcpy(expected.codes.data() + expected.index(o, 0),
                      tensor.codes.data() + tensor.index(before + o, 0), std::size_t(inputs));
          for (int b = 0; b < expected.blocks; ++b) {
            const float scale = tensor.scale(before + o, b);
            expected.scales[std::size_t(o / kFp8ScaleOutputs * expected.blocks + b)] =
                std::isfinite(scale) ? scale : std::nanf("");
          }
        }
        expected.scales.back() = std::nanf("");
        expect_matrix(matrix, memory, expected, place, first, outputs);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Fp8, DummiesAreTheSameDrawsQuantised) {
  const int outputs = 300, inputs = 1024;
  const std::vector<float> numbers = drawn_numbers(*device_, outputs, inputs, 17);
  const Memory memory(*device_, matrix_bytes(kFp8, gate_up_outputs(outputs), inputs));
  const Matrix matrix{memory.as(), kFp8, gate_up_outputs(outputs), inputs};
  run(*device_, FillRandom{.into = matrix, .place = Place::up, .outputs = outputs, .seed = 17});
  expect_matrix(matrix, memory, Coded(outputs, inputs, kFp8Block, numbers), Place::up, 0, outputs);
}

TEST_F(Fp8, WeightsThatAreNotFiniteMakeTheirBlocksScaleANan) {
  const int outputs = 300, inputs = 300;
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> numbers = random_floats(std::size_t(outputs * inputs), 4);
    numbers[std::size_t(140 * inputs + 299)] = bad;
    const Memory memory(*device_, matrix_bytes(kFp8, outputs, inputs));
    const Matrix matrix{memory.as(), kFp8, outputs, inputs};
    run(*device_,
        Pack{.into = matrix, .source = numbers.data(), .source_dtype = DType::f32, .outputs = outputs});
    const Coded expected(outputs, inputs, kFp8Block, numbers);
    ASSERT_TRUE(std::isnan(expected.scale(140, 2)));
    expect_matrix(matrix, memory, expected, Place::rows, 0, outputs);
  }
}

}  // namespace
}  // namespace troupe::kernels::cuda
