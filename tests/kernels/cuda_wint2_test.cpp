// wint2 on the GPU: every weight as one-hot rows show it, to the bit, and grouped products in every way
// beside sums in double precision over weights that wint2_file.h decodes.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/product/linear.h"
#include "kernels/device_under_test.h"
#include "kernels/fill_random.h"
#include "kernels/lm_head.h"
#include "kernels/wint2_file.h"

namespace troupe::kernels::cuda {
namespace {

constexpr WeightFormat kWint2{WeightKind::wint2, DType::bf16};

/// A code times its group's scale as the tensor cores' operand has it.
double operand(int code) { return static_cast<double>(rounded_to(DType::bf16, static_cast<float>(code))); }

/// Groups of rows, each with a matrix; gate|up of files of their own, which have neighbours in the tensors.
struct Wint2Experts {
  Wint2Experts(DeviceUnderTest& device, bool pairs, int groups, int outputs, int inputs,
               DType activations = DType::bf16)
      : format{WeightKind::wint2, activations},
        pairs(pairs),
        inputs(inputs),
        outputs(pairs ? gate_up_outputs(outputs) : outputs),
        stride(matrix_bytes(format, this->outputs, inputs)),
        memory(device, stride * static_cast<std::size_t>(groups)) {
    for (int g = 0; g < groups; ++g) {
      const auto seed = static_cast<std::uint32_t>(2 * g + 1);
      if (pairs) {
        files.emplace_back(outputs, inputs, seed, 0, outputs);
        files.back().pack(device, matrix(g), Place::gate);
        files.emplace_back(outputs, inputs, seed + 1, outputs, 0);
        files.back().pack(device, matrix(g), Place::up);
      } else {
        files.emplace_back(outputs, inputs, seed, 3, 40);
        files.back().pack(device, matrix(g));
      }
    }
  }
  Matrix matrix(int group) const {
    return {memory.as<std::byte>() + static_cast<std::size_t>(group) * stride, format, outputs, inputs};
  }

  WeightFormat format;
  bool pairs;
  int inputs, outputs;
  std::size_t stride;
  Memory memory;
  std::vector<Wint2File> files;  // of each group, or of its gate and up
};

class CudaWint2 : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device_ = std::make_unique<DeviceUnderTest>(shared_cuda(false));
  }
  GpuTraits gpu() { return traits_of(device_->cuda()); }
  GpuTraits small() {  // any product has blocks enough for it, so experts get wide ones
    GpuTraits traits = gpu();
    traits.multiprocessors = 1;
    return traits;
  }
  std::unique_ptr<DeviceUnderTest> device_;
};

TEST_F(CudaWint2, EveryWeightToTheBit) {
  for (const auto& [outputs, inputs] :
       std::vector<std::pair<int, int>>{{96, 128}, {70, 256}, {33, 384}, {160, 1152}, {257, 640}}) {
    const Wint2Experts experts(*device_, false, 2, outputs, inputs);
    std::vector<float> numbers(static_cast<std::size_t>(2 * inputs * inputs));
    for (int i = 0; i < 2 * inputs; ++i) numbers[static_cast<std::size_t>(i * inputs + i % inputs)] = 1;
    const Rows x(*device_, DType::bf16, 2 * inputs, inputs, numbers);
    const std::vector<std::int32_t> offsets{0, inputs, 2 * inputs};
    const auto check = [&](const char* way, bool exact, Ending ending, auto&& run_it) {
      const bool wide = ending == Ending::store_f32;
      const std::vector<float> ones(static_cast<std::size_t>(2 * inputs), 1.0f);
      Rows y(*device_, wide ? DType::f32 : DType::bf16, 2 * inputs, outputs);
      const Linear linear{
          .weight = experts.matrix(0),
          .x = x.data(),
          .rows = 2 * inputs,
          .groups = {.offsets = device_->put(offsets), .count = 2, .weight_stride = experts.stride},
          .x_rows = 2 * inputs,
          .ending = ending,
          .out = y.data(),
          .scale = device_->put(ones)};
      device_->call([&] { run_it(device_->cuda(), linear); });
      int failures = 0;
      for (int i = 0; i < 2 * inputs; ++i) {
        const Wint2File& file = experts.files[static_cast<std::size_t>(i / inputs)];
        for (int o = 0; o < outputs; ++o) {
          const int code = file.code(o, i % inputs);
          float want = static_cast<float>(exact ? code : operand(code)) * file.super_scale(o);
          if (!wide) want = rounded_to(DType::bf16, want);
          if (y.at(i, o) != want && ++failures <= 3)
            ADD_FAILURE() << way << ", " << outputs << " x " << inputs << ", matrix " << i / inputs
                          << ", input " << i % inputs << ", output " << o << ": " << y.at(i, o)
                          << " instead of " << want;
        }
      }
    };
    check("generic", true, Ending::store_f32, [](Cuda& device, const Linear& l) { run_generic(device, l); });
    for (const int tile : {8, 16, 32}) {
      for (const GpuTraits& traits : {gpu(), small()}) {
        check("stream", false, Ending::store_f32, [&](Cuda& device, const Linear& l) {
          LinearShape shape = shape_of(l);
          shape.rows = tile == 8 ? 2 : tile == 16 ? 20 : 2 * inputs;  // which chooses the tile
          const StreamPlan plan = stream_plan(shape, traits);
          ASSERT_EQ(plan.tile_rows, tile);
          run_stream(device, l, plan);
        });
      }
    }
    if (gpu().features.wgmma)
      check("unpacked", false, Ending::store_scaled,
            [](Cuda& device, const Linear& l) { run_unpacked(device, l); });
  }
}

struct Wint2Case {
  Ending ending;
  std::vector<int> group_rows;
  int outputs, inputs;  // of gate|up: the activation's
  bool gathered;
};

TEST_F(CudaWint2, GroupedProductsEqualSumsInDoublePrecision) {
  std::vector<Wint2Case> cases;
  for (const std::vector<int>& rows :
       {std::vector<int>{1, 0, 1, 1, 0, 1}, std::vector<int>{3, 0, 17, 1, 0, 9},
        std::vector<int>{40, 150, 0, 1, 64, 129}}) {
    cases.push_back({Ending::swiglu, rows, 384, 1280, true});
    cases.push_back({Ending::store_scaled, rows, 1280, 384, false});
    cases.push_back({Ending::store_scaled, rows, 1100, 128, false});
    cases.push_back({Ending::swiglu, rows, 448, 1152, true});
    cases.push_back({Ending::store_scaled, rows, 512, 8192, false});
  }
  for (const Wint2Case& c : cases) {
    const bool pairs = c.ending == Ending::swiglu;
    const int groups = static_cast<int>(c.group_rows.size());
    const Wint2Experts experts(*device_, pairs, groups, c.outputs, c.inputs);
    std::vector<std::int32_t> offsets{0}, gather;
    for (const int rows : c.group_rows) offsets.push_back(offsets.back() + rows);
    const int rows = offsets.back(), x_rows = c.gathered ? rows / 2 + 1 : rows;
    std::mt19937 random(3);
    std::vector<float> scale;
    for (int p = 0; p < rows; ++p) {
      gather.push_back(static_cast<int>(random() % static_cast<unsigned>(x_rows)));
      scale.push_back(0.25f + static_cast<float>(random() % 1000) / 1000);
    }
    std::vector<float> numbers = random_floats(static_cast<std::size_t>(x_rows * c.inputs), 5, 0.1f);
    for (float& v : numbers) v = rounded_to(DType::bf16, v);
    const Rows x(*device_, DType::bf16, x_rows, c.inputs, numbers);
    const auto dot = [&](std::size_t file, int p, int o) {
      const Wint2File& weights = experts.files[file];
      const int row = c.gathered ? gather[static_cast<std::size_t>(p)] : p;
      double sum = 0;
      for (int i = 0; i < c.inputs; ++i)
        sum += operand(weights.code(o, i)) *
               static_cast<double>(numbers[static_cast<std::size_t>(row * c.inputs + i)]);
      return sum * static_cast<double>(weights.super_scale(o));
    };
    struct Expected {
      int p, o;
      double y;
    };
    std::vector<Expected> expected;
    for (int g = 0; g < groups; ++g) {
      const auto group = static_cast<std::size_t>(g);
      for (int p = offsets[group]; p < offsets[group + 1]; ++p) {
        for (int n = 0; n < 24; ++n) {
          const int o = n < 4   ? n
                        : n < 8 ? c.outputs + 3 - n
                                : static_cast<int>(random() % unsigned(c.outputs));
          double y = 0;
          if (pairs) {
            const double gate = dot(2 * group, p, o);
            y = gate / (1 + std::exp(-gate)) * dot(2 * group + 1, p, o);
          } else {
            y = dot(group, p, o) * static_cast<double>(scale[static_cast<std::size_t>(p)]);
          }
          expected.push_back({p, o, y});
        }
      }
    }
    const auto check = [&](const char* way, auto&& run_it) {
      Rows y(*device_, DType::bf16, rows, c.outputs);
      const Linear linear{.weight = experts.matrix(0),
                          .x = x.data(),
                          .rows = rows,
                          .groups = {.offsets = device_->put(offsets),
                                     .gather = c.gathered ? device_->put(gather) : nullptr,
                                     .count = groups,
                                     .weight_stride = experts.stride},
                          .x_rows = x_rows,
                          .ending = c.ending,
                          .out = y.data(),
                          .scale = device_->put(scale)};
      device_->call([&] { run_it(device_->cuda(), linear); });
      int failures = 0;
      for (const Expected& e : expected) {
        const double got = static_cast<double>(y.at(e.p, e.o));
        if (!(std::abs(got - e.y) <= 0x1p-8 * std::abs(e.y) + 1e-3) && ++failures <= 3)
          ADD_FAILURE() << way << ", " << c.outputs << " x " << c.inputs << ", " << rows << " rows, row "
                        << e.p << ", output " << e.o << ": " << got << " instead of " << e.y;
      }
      std::vector<float> all;
      for (int p = 0; p < rows; ++p) {
        for (int o = 0; o < c.outputs; ++o) all.push_back(y.at(p, o));
      }
      return all;
    };
    const auto stream = [&](const GpuTraits& traits) {
      return check("stream", [&](Cuda& device, const Linear& l) {
        run_stream(device, l, stream_plan(shape_of(l), traits));
      });
    };
    const std::vector<float> narrow = stream(gpu());
    EXPECT_EQ(stream(small()), narrow) << "the order of additions is the same";
    check("chosen", [](Cuda& device, const Linear& l) { run(device, l); });
    if (gpu().features.wgmma)
      check("unpacked", [](Cuda& device, const Linear& l) { run_unpacked(device, l); });
  }
}

TEST_F(CudaWint2, OtherTypesOfActivationsGoTheGenericWay) {
  for (const DType dtype : all_dtypes()) {
    const Wint2Experts experts(*device_, false, 1, 70, 384, dtype);
    std::vector<float> numbers = random_floats(5 * 384, 5, 0.1f);
    for (float& v : numbers) v = rounded_to(dtype, v);
    const Rows x(*device_, dtype, 5, 384, numbers);
    Rows y(*device_, DType::f32, 5, 70);
    run(*device_, LmHead{.logits = y.floats(), .x = x.data(), .weight = experts.matrix(0), .rows = 5});
    for (int r = 0; r < 5; ++r) {
      for (int o = 0; o < 70; ++o) {
        double sum = 0, size = 0;
        for (int i = 0; i < 384; ++i) {
          const double product = experts.files[0].weight(o, i) *
                                 static_cast<double>(numbers[static_cast<std::size_t>(r * 384 + i)]);
          sum += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(y.at(r, o), sum, 1e-6 * size);
      }
    }
  }
}

TEST_F(CudaWint2, DrawnWeightsAreTheCpus) {
  constexpr int kOutputs = 70, kInputs = 384;
  DeviceUnderTest cpu(std::make_unique<Cpu>(CpuOptions{.threads = 2, .pin = false}));
  // The rows show each weight; the scale is a power of two, so that its product with a code is exact.
  const auto weights = [&](DeviceUnderTest& device) {
    const Memory memory(device, matrix_bytes(kWint2, kOutputs, kInputs));
    const Matrix matrix{memory.as(), kWint2, kOutputs, kInputs};
    run(device, FillRandom{.into = matrix,
                           .outputs = kOutputs,
                           .seed = 9,
                           .deviation = 18.47f * 11.7f / 1024,
                           .first_output = 32,
                           .part = {256, 1024}});
    Rows x(device, DType::bf16, kInputs, kInputs), y(device, DType::f32, kInputs, kOutputs);
    for (int i = 0; i < kInputs; ++i) x.set(i, i, 127);
    run(device, LmHead{.logits = y.floats(), .x = x.data(), .weight = matrix, .rows = kInputs});
    std::vector<float> found;
    for (int i = 0; i < kInputs; ++i) {
      for (int o = 0; o < kOutputs; ++o) found.push_back(y.at(i, o));
    }
    return found;
  };
  EXPECT_EQ(weights(*device_), weights(cpu));
}

}  // namespace
}  // namespace troupe::kernels::cuda
