// Mixtures with two kinds of rows: an op routes the rows of its own kind, and gives the others its shared
// slices.
#include <cmath>

#include "kernels/device_under_test.h"
#include "kernels/moe.h"

namespace troupe::kernels {
namespace {

constexpr int kHidden = 40, kWidth = 24, kExperts = 5, kChosen = 2, kRows = 9;

class MoeKinds : public testing::TestWithParam<DType> {
 protected:
  MoeKinds()
      : device_(std::make_unique<Cpu>(CpuOptions{.threads = 2, .pin = false})),
        router_(device_, DType::f32, kExperts, kHidden, random_floats(kExperts * kHidden, 1)),
        bias_(device_, DType::f32, 1, kExperts, random_floats(kExperts, 2)),
        gate_up_(device_, (kExperts + 1) * matrix_bytes(dtype(), kOutputs, kHidden)),
        down_(device_, (kExperts + 1) * matrix_bytes(dtype(), kHidden, kWidth)),
        x_(device_, dtype(), kRows, kHidden, random_floats(kRows * kHidden, 3)) {
    for (int e = 0; e <= kExperts; ++e) {
      const auto seed = static_cast<std::uint32_t>(10 + 3 * e);
      pack(gate_up().at(e), Place::gate, kWidth, kHidden, seed);
      pack(gate_up().at(e), Place::up, kWidth, kHidden, seed + 1);
      pack(down().at(e), Place::rows, kHidden, kWidth, seed + 2);
    }
  }

  static DType dtype() { return GetParam(); }
  MatrixStack gate_up() const { return {{gate_up_.as(), dtype(), kOutputs, kHidden}, kExperts + 1}; }
  MatrixStack down() const { return {{down_.as(), dtype(), kHidden, kWidth}, kExperts + 1}; }

  void pack(const Matrix& into, Place place, int outputs, int inputs, std::uint32_t seed) {
    const auto values = random_floats(static_cast<std::size_t>(outputs * inputs), seed, 0.3f);
    run(device_.cpu(), Pack{.into = into,
                            .source = values.data(),
                            .source_dtype = DType::f32,
                            .place = place,
                            .outputs = outputs});
  }

  // What the op adds to zeros; `kinds` empty: none are given.
  std::vector<float> added(const std::vector<std::uint8_t>& kinds, std::uint8_t kind, int shared = 1) {
    Rows y(device_, DType::f32, kRows, kHidden);
    MatrixStack gates = gate_up(), downs = down();
    gates.count = downs.count = kExperts + shared;
    std::vector<std::int32_t> chosen(kRows * kChosen);
    device_.call([&] {
      run(device_.cpu(), Moe{.residual = y.floats(),
                             .x = x_.data(),
                             .router = router_.matrix,
                             .bias = bias_.floats(),
                             .gate_up = gates,
                             .down = downs,
                             .experts = kExperts,
                             .shared = shared,
                             .top_k = kChosen,
                             .rows = kRows,
                             .kinds = kinds.empty() ? nullptr : kinds.data(),
                             .kind = kind,
                             .chosen = chosen.data()});
    });
    for (std::size_t r = 0; r < kRows; ++r) {
      const bool routed = kinds.empty() || kinds[r] == kind;
      for (std::size_t k = 0; k < kChosen; ++k) EXPECT_EQ(chosen[r * kChosen + k] >= 0, routed) << r;
    }
    std::vector<float> all;
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kHidden; ++c) all.push_back(y.at(r, c));
    }
    return all;
  }

  static constexpr int kOutputs = gate_up_outputs(kWidth);

 private:
  DeviceUnderTest device_;
  Weight router_;
  Rows bias_;
  Memory gate_up_, down_;
  Rows x_;
};

INSTANTIATE_TEST_SUITE_P(On, MoeKinds, testing::ValuesIn(all_dtypes()),
                         [](const auto& info) { return to_string(info.param); });

TEST_P(MoeKinds, RowsOfItsKindAreRoutedAndOthersShareAlone) {
  const std::vector<std::uint8_t> kinds{0, 1, 1, 0, 1, 0, 0, 1, 0};
  const auto all = added({}, 0), routed = added({}, 0, 0),
             none = added(std::vector<std::uint8_t>(kRows, 2), 0);
  for (const std::uint8_t kind : {std::uint8_t{0}, std::uint8_t{1}}) {
    const auto some = added(kinds, kind), alone = added(kinds, kind, 0);
    for (std::size_t i = 0; i < some.size(); ++i) {
      const bool own = kinds[i / kHidden] == kind;
      ASSERT_EQ(some[i], own ? all[i] : none[i]) << i;
      ASSERT_EQ(alone[i], own ? routed[i] : 0) << i;
      ASSERT_NE(none[i], 0) << "the shared slice adds nothing";
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
