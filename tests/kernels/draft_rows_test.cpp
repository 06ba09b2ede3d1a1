// Ops of the draft layer, against references in double precision.
#include "kernels/draft_rows.h"

#include "kernels/add_rms_norm.h"
#include "kernels/device_under_test.h"

namespace troupe::kernels {
namespace {

class DraftOps : public OpTest {
 protected:
  std::vector<float> norm_weights(int cols, std::uint32_t seed) const {
    std::vector<float> values = random_floats(static_cast<std::size_t>(padded(cols)), seed);
    for (float& value : values) value = rounded_to(dtype(), value);
    return values;
  }
  /// CopyRows of rows of 32 columns; without places, or without rows, all in order.
  void copy_rows(Rows& to, const Rows& from, const std::vector<std::int32_t>& places,
                 const std::vector<std::int32_t>& rows, int count) {
    const std::size_t bytes = 32 * size_of(dtype());
    run(device(), CopyRows{.out = to.data(),
                           .rows = from.data(),
                           .to = places.empty() ? nullptr : device().put(places),
                           .from = rows.empty() ? nullptr : device().put(rows),
                           .count = count,
                           .out_stride = bytes,
                           .row_stride = bytes,
                           .row_bytes = bytes});
  }
};
TROUPE_ALL_DEVICES(DraftOps);

TEST_P(DraftOps, InputJoinsTwoNorms) {
  // 40 and 42 columns: halves have no padding between them; 3100: more than a GPU's threads hold. 65 rows:
  // several claims of the pool.
  for (const int cols : {32, 40, 42, 3100}) {
    constexpr int kRows = 65, kKept = 3;
    const std::size_t ld = static_cast<std::size_t>(padded(cols));
    Rows hidden(device(), dtype(), kRows, cols, random_floats(std::size_t(kRows * cols), 1));
    Rows kept(device(), dtype(), kKept, cols, random_floats(std::size_t(kKept * cols), 2));
    Rows out(device(), dtype(), kRows, 2 * cols);
    std::vector<float> residual(kRows * ld);
    const std::vector<float> numbers = random_floats(std::size_t(kRows * cols), 3);
    for (int r = 0; r < kRows; ++r) {
      std::copy_n(numbers.begin() + r * cols, cols, residual.begin() + std::ptrdiff_t(r * int(ld)));
    }
    std::vector<std::int32_t> from(kRows);
    for (int r = 0; r < kRows; ++r) from[std::size_t(r)] = r % 4 == 0 ? -1 - r / 4 % kKept : kRows - 1 - r;
    const auto embedding_norm = norm_weights(cols, 4), hidden_norm = norm_weights(cols, 5);
    float* const device_residual = device().put(residual.data(), residual.size());
    run(device(), DraftInput{.out = out.data(),
                             .residual = device_residual,
                             .hidden = hidden.data(),
                             .kept = kept.data(),
                             .from = device().put(from),
                             .embedding_norm = device().put(embedding_norm),
                             .hidden_norm = device().put(hidden_norm),
                             .dtype = dtype(),
                             .rows = kRows,
                             .cols = cols});
    const auto expect_norm = [&](int row, int first, const std::vector<float>& weight, auto&& value) {
      double squares = 0;
      for (int i = 0; i < cols; ++i) squares += double(value(i)) * double(value(i));
      const double inverse = 1 / std::sqrt(squares / cols + 1e-5);
      for (int i = 0; i < cols; ++i) {
        const double expected = double(value(i)) * inverse * double(weight[std::size_t(i)]);
        ASSERT_NEAR(out.at(row, first + i), expected, 4 * rounding_unit(dtype()) * std::abs(expected) + 1e-6)
            << cols << ' ' << row << ' ' << i;
      }
    };
    for (int r = 0; r < kRows; ++r) {
      const int source = from[std::size_t(r)];
      expect_norm(r, 0, embedding_norm, [&](int i) { return numbers[std::size_t(r * cols + i)]; });
      expect_norm(r, cols, hidden_norm,
                  [&](int i) { return source < 0 ? kept.at(-1 - source, i) : hidden.at(source, i); });
      for (int i = 2 * cols; i < padded(2 * cols); ++i) ASSERT_EQ(out.at(r, i), 0.0f) << cols << ' ' << r;
    }
    std::vector<float> after(residual.size());
    device().download(after.data(), device_residual, after.size() * sizeof(float));
    EXPECT_EQ(after, std::vector<float>(residual.size(), 0.0f));
  }
}

TEST_P(DraftOps, TheNormsHaveAddRmsNormsBits) {
  for (const int cols : {40, 3100}) {
    constexpr int kRows = 3;
    const std::vector<float> numbers = random_floats(std::size_t(kRows) * std::size_t(cols), 1);
    // The rows are those of a hidden row too: of the dtype, so that both halves have the same numbers.
    Rows hidden(device(), dtype(), kRows, cols, numbers), residual(device(), DType::f32, kRows, cols);
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < cols; ++i) residual.set(r, i, hidden.at(r, i));
    }
    Rows normed(device(), dtype(), kRows, cols), out(device(), dtype(), kRows, 2 * cols);
    const std::vector<std::int32_t> from{0, 1, 2};
    const float* const weight = device().put(norm_weights(cols, 2));
    run(device(), AddRmsNorm{.out = normed.data(),
                             .residual = residual.floats(),
                             .weight = weight,
                             .dtype = dtype(),
                             .rows = kRows,
                             .cols = cols});
    run(device(), DraftInput{.out = out.data(),
                             .residual = residual.floats(),
                             .hidden = hidden.data(),
                             .from = device().put(from),
                             .embedding_norm = weight,
                             .hidden_norm = weight,
                             .dtype = dtype(),
                             .rows = kRows,
                             .cols = cols});
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < cols; ++i) {
        ASSERT_EQ(out.at(r, i), normed.at(r, i)) << cols << ' ' << r << ' ' << i;
        ASSERT_EQ(out.at(r, cols + i), normed.at(r, i)) << cols << ' ' << r << ' ' << i;
      }
    }
  }
}

TEST_P(DraftOps, RoundRowsPicks) {
  constexpr int kCols = 40, kRows = 30;
  const std::vector<float> numbers = random_floats(std::size_t(kRows) * padded(kCols), 1);
  const std::vector<std::int32_t> picks{29, 0, 7, 7};
  Rows out(device(), dtype(), 4, kCols);
  run(device(), RoundRows{.out = out.data(),
                          .rows = device().put(numbers),
                          .pick = device().put(picks),
                          .dtype = dtype(),
                          .count = 4,
                          .cols = kCols});
  for (int r = 0; r < 4; ++r) {
    for (int i = 0; i < kCols; ++i) {
      const auto at = std::size_t(picks[std::size_t(r)] * padded(kCols) + i);
      ASSERT_EQ(out.at(r, i), rounded_to(dtype(), numbers[at]));
    }
  }
}

TEST_P(DraftOps, CopyRowsScatters) {
  Rows from(device(), dtype(), 5, 32, random_floats(5 * 32, 1));
  Rows to(device(), dtype(), 4, 32, std::vector<float>(4 * 32, 1.0f));
  const std::vector<std::int32_t> rows{4, 1 << 30, 0}, places{1, -1, 3};
  copy_rows(to, from, places, rows, 3);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(to.at(1, i), from.at(4, i));
    EXPECT_EQ(to.at(3, i), from.at(0, i));
    EXPECT_EQ(to.at(0, i), 1.0f);
    EXPECT_EQ(to.at(2, i), 1.0f);
  }
}

TEST_P(DraftOps, CopyRowsGathers) {
  Rows from(device(), dtype(), 5, 32, random_floats(5 * 32, 1));
  Rows to(device(), dtype(), 3, 32);
  const std::vector<std::int32_t> rows{4, 1};
  copy_rows(to, from, {}, rows, 2);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(to.at(0, i), from.at(4, i));
    EXPECT_EQ(to.at(1, i), from.at(1, i));
    EXPECT_EQ(to.at(2, i), 0.0f);
  }
}

TEST_P(DraftOps, CopyRowsScattersAllInOrder) {
  Rows from(device(), dtype(), 2, 32, random_floats(2 * 32, 1));
  Rows to(device(), dtype(), 4, 32);
  const std::vector<std::int32_t> places{3, 1};
  copy_rows(to, from, places, {}, 2);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(to.at(0, i), 0.0f);
    EXPECT_EQ(to.at(1, i), from.at(1, i));
    EXPECT_EQ(to.at(2, i), 0.0f);
    EXPECT_EQ(to.at(3, i), from.at(0, i));
  }
}

}  // namespace
}  // namespace troupe::kernels
