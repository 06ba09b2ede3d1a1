// W4A8 experts and static scales of keys and values on the GPU beside the CPU; and the ways of the experts'
// products, whose sums are whole numbers, beside each other to the bit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/moe/layout.h"
#include "kernels/cuda/scratch.h"
#include "kernels/device_under_test.h"
#include "kernels/moe.h"
#include "kernels/static_kv.h"

namespace troupe::kernels {
namespace {

constexpr int kStaticHidden = 512, kStaticWidth = 256, kStaticExperts = 8, kStaticChosen = 4;

/// Multiples of 2^-bits up to `largest`: sums of the router are exact, so that every device and every batch
/// chooses the same experts with the same weights.
std::vector<float> coarse(std::size_t count, std::uint32_t seed, int bits, float largest) {
  std::vector<float> values = random_floats(count, seed);
  for (float& v : values) {
    v = std::clamp(v, -largest, largest);
    v = std::ldexp(std::nearbyint(std::ldexp(v, bits)), -bits);
  }
  return values;
}

class StaticExperts {
 public:
  StaticExperts(DeviceUnderTest& device, DType dtype)
      : device_(device),
        format_{WeightKind::int4, dtype},
        router_(device, DType::f32, kStaticExperts, kStaticHidden,
                coarse(kStaticExperts * kStaticHidden, 1, 6, 1)),
        bias_(device, DType::f32, 1, kStaticExperts, std::vector<float>(kStaticExperts, 0.0f)),
        gate_up_(device,
                 kStaticExperts * matrix_bytes(format_, gate_up_outputs(kStaticWidth), kStaticHidden)),
        down_(device, kStaticExperts * matrix_bytes(format_, kStaticHidden, kStaticWidth)) {
    std::vector<StaticInput> gate_up_inputs, down_inputs;
    for (int e = 0; e < kStaticExperts; ++e) {
      const auto seed = static_cast<std::uint32_t>(10 + 3 * e);
      pack(gate_up().at(e), Place::gate, kStaticWidth, kStaticHidden, seed);
      pack(gate_up().at(e), Place::up, kStaticWidth, kStaticHidden, seed + 1);
      pack(down().at(e), Place::rows, kStaticHidden, kStaticWidth, seed + 2);
      gate_up_inputs.push_back({127.0f / static_cast<float>(2 + e), 0x1p-6f});
      down_inputs.push_back({127.0f / static_cast<float>(16 + 4 * e), 0x1p-3f});
    }
    gate_up_inputs_ = device.put(gate_up_inputs);
    down_inputs_ = device.put(down_inputs);
  }

  Moe op(float* residual, const void* x, int rows) const {
    return {.residual = residual,
            .x = x,
            .router = router_.matrix,
            .bias = bias_.floats(),
            .gate_up = gate_up(),
            .down = down(),
            .gate_up_inputs = gate_up_inputs_,
            .down_inputs = down_inputs_,
            .experts = kStaticExperts,
            .top_k = kStaticChosen,
            .rows = rows};
  }

  /// What the experts add to zeros, of rows first … first + count - 1.
  std::vector<float> added(int first, int count, float spoilt = 0) {
    auto numbers = coarse(static_cast<std::size_t>((first + count) * kStaticHidden), 2, 5, 3.5f);
    numbers.erase(numbers.begin(), numbers.begin() + first * kStaticHidden);
    if (spoilt != 0) numbers[3] = spoilt;
    const Rows x(device_, format_.activations, count, kStaticHidden, numbers);
    const Rows y(device_, DType::f32, count, kStaticHidden);
    run(device_, op(y.floats(), x.data(), count));
    std::vector<float> all;
    for (int r = 0; r < count; ++r) {
      for (int c = 0; c < kStaticHidden; ++c) all.push_back(y.at(r, c));
    }
    return all;
  }

  MatrixStack gate_up() const {
    return {{gate_up_.as(), format_, gate_up_outputs(kStaticWidth), kStaticHidden}, kStaticExperts};
  }
  MatrixStack down() const { return {{down_.as(), format_, kStaticHidden, kStaticWidth}, kStaticExperts}; }

 private:
  void pack(const Matrix& into, Place place, int outputs, int inputs, std::uint32_t seed) {
    const auto values = random_floats(static_cast<std::size_t>(outputs * inputs), seed,
                                      2 / std::sqrt(static_cast<float>(inputs)));
    run(device_, Pack{.into = into,
                      .source = values.data(),
                      .source_dtype = DType::f32,
                      .place = place,
                      .outputs = outputs});
  }

  DeviceUnderTest& device_;
  WeightFormat format_;
  Weight router_;
  Rows bias_;
  Memory gate_up_, down_;
  const StaticInput *gate_up_inputs_ = nullptr, *down_inputs_ = nullptr;
};

double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double wrong = 0, all = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    wrong += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
    all += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(wrong / all);
}

class StaticExpertsOnCuda : public OnCuda {};
INSTANTIATE_TEST_SUITE_P(OnCuda, StaticExpertsOnCuda, testing::ValuesIn(all_dtypes()),
                         [](const auto& info) { return to_string(info.param); });

TEST_P(StaticExpertsOnCuda, GiveWhatTheCpuGives) {
  DeviceUnderTest cpu(std::make_unique<Cpu>(CpuOptions{.threads = 2, .pin = false}));
  StaticExperts expected(cpu, dtype());
  std::vector<Cuda*> gpus = {&usual()};
  for (const char* card : kCardsWithoutWgmma) gpus.push_back(&cuda_like(card));
  for (Cuda* gpu : gpus) {
    DeviceUnderTest there(*gpu);
    StaticExperts got(there, dtype());
    for (const int rows : {1, 7, 40, 300}) {
      // An activation that is rounded to its neighbour changes a few codes by one.
      EXPECT_LT(relative_error(got.added(0, rows), expected.added(0, rows)),
                dtype() == DType::f32 ? 1e-3 : 1e-2)
          << rows;
    }
  }
}

TEST_P(StaticExpertsOnCuda, SumsAreTheSameInEveryWay) {
  DeviceUnderTest device(usual());
  StaticExperts experts(device, dtype());
  const int many = 300;
  if (dtype() == DType::bf16) {
    const auto ways = [&](int rows) {
      const cuda::MoeLayout layout =
          cuda::lay_out(experts.op(nullptr, nullptr, rows), cuda::traits_of(device.cuda()), nullptr);
      EXPECT_EQ(layout.gate_up.way, layout.down.way);
      return layout.down.way;
    };
    EXPECT_EQ(ways(1), cuda::LinearWay::stream);
    EXPECT_EQ(ways(many), cuda::traits_of(device.cuda()).features.wgmma ? cuda::LinearWay::unpacked
                                                                        : cuda::LinearWay::stream);
  }
  const std::vector<float> together = experts.added(0, many);
  for (const int row : {0, 1, 150, many - 1}) {
    const std::vector<float> alone = experts.added(row, 1);
    const auto* const first = together.data() + row * kStaticHidden;
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), first)) << row;
  }
}

TEST_P(StaticExpertsOnCuda, ARowThatIsNotFiniteIsNaNAlone) {
  DeviceUnderTest device(usual());
  StaticExperts experts(device, dtype());
  for (const float spoilt :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<float> y = experts.added(0, 3, spoilt);
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[kStaticHidden - 1]));
    EXPECT_TRUE(std::none_of(y.begin() + kStaticHidden, y.end(), [](float v) { return std::isnan(v); }));
  }
}

}  // namespace
}  // namespace troupe::kernels
