// Mixtures with two kinds of rows: an op routes the rows of its own kind, and gives the others its shared
// slices.
#include <cmath>

#include "kernels/device_under_test.h"
#include "kernels/moe.h"

namespace troupe::kernels {
namespace {

constexpr int kHidden = 40, kWidth = 24, kExperts = 20, kChosen = 3;

/// An op with experts of its own, for `rows` rows.
class Mixture {
 public:
  Mixture(DeviceUnderTest& device, DType dtype, int rows)
      : device_(device),
        dtype_(dtype),
        rows_(rows),
        router_(device_, DType::f32, kExperts, kHidden, random_floats(kExperts * kHidden, 1)),
        bias_(device_, DType::f32, 1, kExperts, random_floats(kExperts, 2)),
        gate_up_(device_, (kExperts + 1) * matrix_bytes(dtype, kOutputs, kHidden)),
        down_(device_, (kExperts + 1) * matrix_bytes(dtype, kHidden, kWidth)),
        x_(device_, dtype, rows, kHidden, random_floats(static_cast<std::size_t>(rows * kHidden), 3)) {
    for (int e = 0; e <= kExperts; ++e) {
      const auto seed = static_cast<std::uint32_t>(10 + 3 * e);
      pack(gate_up().at(e), Place::gate, kWidth, kHidden, seed);
      pack(gate_up().at(e), Place::up, kWidth, kHidden, seed + 1);
      pack(down().at(e), Place::rows, kHidden, kWidth, seed + 2);
    }
  }

  DType dtype() const { return dtype_; }
  MatrixStack gate_up() const { return {{gate_up_.as(), dtype(), kOutputs, kHidden}, kExperts + 1}; }
  MatrixStack down() const { return {{down_.as(), dtype(), kHidden, kWidth}, kExperts + 1}; }

  void pack(const Matrix& into, Place place, int outputs, int inputs, std::uint32_t seed) {
    const auto values = random_floats(static_cast<std::size_t>(outputs * inputs), seed, 0.3f);
    run(device_, Pack{.into = into,
                      .source = values.data(),
                      .source_dtype = DType::f32,
                      .place = place,
                      .outputs = outputs});
  }

  // What the op adds to zeros; `kinds` empty: none are given.
  std::vector<float> added(const std::vector<std::uint8_t>& kinds, std::uint8_t kind, int shared = 1) {
    Rows y(device_, DType::f32, rows_, kHidden);
    const auto rows = static_cast<std::size_t>(rows_);
    MatrixStack gates = gate_up(), downs = down();
    gates.count = downs.count = kExperts + shared;
    const Memory chosen(device_, rows * kChosen * sizeof(std::int32_t));
    run(device_, Moe{.residual = y.floats(),
                     .x = x_.data(),
                     .router = router_.matrix,
                     .bias = bias_.floats(),
                     .gate_up = gates,
                     .down = downs,
                     .experts = kExperts,
                     .shared = shared,
                     .top_k = kChosen,
                     .rows = rows_,
                     .kinds = kinds.empty() ? nullptr : device_.put(kinds),
                     .kind = kind,
                     .chosen = chosen.as<std::int32_t>()});
    for (std::size_t r = 0; r < rows; ++r) {
      const bool routed = kinds.empty() || kinds[r] == kind;
      for (std::size_t k = 0; k < kChosen; ++k)
        EXPECT_EQ(chosen.host<std::int32_t>()[r * kChosen + k] >= 0, routed) << r;
    }
    std::vector<float> all;
    for (int r = 0; r < rows_; ++r) {
      for (int c = 0; c < kHidden; ++c) all.push_back(y.at(r, c));
    }
    return all;
  }

  static constexpr int kOutputs = gate_up_outputs(kWidth);

 private:
  DeviceUnderTest& device_;
  const DType dtype_;
  const int rows_;
  Weight router_;
  Rows bias_;
  Memory gate_up_, down_;
  Rows x_;
};

class MoeKinds : public OpTest {
 protected:
  /// `tolerance`: for a GPU's usual kernels, which may sum up a row in another order when other rows are
  /// beside it.
  void check(DeviceUnderTest& device, int rows, float tolerance) {
    Mixture mixture(device, dtype(), rows);
    std::vector<std::uint8_t> kinds;
    for (int r = 0; r < rows; ++r) kinds.push_back(static_cast<std::uint8_t>(r * r / 3 % 2));
    const auto all = mixture.added({}, 0), routed = mixture.added({}, 0, 0),
               none = mixture.added(std::vector<std::uint8_t>(static_cast<std::size_t>(rows), 2), 0);
    for (const std::uint8_t kind : {std::uint8_t{0}, std::uint8_t{1}}) {
      const auto some = mixture.added(kinds, kind), alone = mixture.added(kinds, kind, 0);
      for (std::size_t i = 0; i < some.size(); ++i) {
        const bool own = kinds[i / kHidden] == kind;
        ASSERT_NEAR(some[i], own ? all[i] : none[i], tolerance) << i;
        ASSERT_NEAR(alone[i], own ? routed[i] : 0, own ? tolerance : 0) << i;
        ASSERT_NE(none[i], 0) << "the shared slice adds nothing";
      }
    }
  }
};

TROUPE_ALL_DEVICES(MoeKinds);

TEST_P(MoeKinds, RowsOfItsKindAreRoutedAndOthersShareAlone) { check(invariant_device(), 9, 0); }

// Tiles of 16 rows in a cluster, several of them, and tiles of 32 of both widths: all ways of a GPU's router.
TEST_P(MoeKinds, HoweverManyRows) {
  const std::vector<int> all{9, 200, 300, 2100};
  for (const int rows : where().cuda ? all : std::vector<int>{37})
    check(device(), rows, where().cuda ? static_cast<float>(rounding_unit(dtype())) * 16 + 1e-5f : 0);
}

}  // namespace
}  // namespace troupe::kernels
