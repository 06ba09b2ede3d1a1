// Ops of the vision tower and the resampler, against references in double precision.
#include <numbers>

#include "kernels/device_under_test.h"
#include "kernels/frame_attention.h"
#include "kernels/join_rows.h"
#include "kernels/layer_norm.h"
#include "kernels/linear_bias.h"
#include "kernels/normalise_patches.h"

namespace troupe::kernels {
namespace {

class VisionOps : public OpTest {
 protected:
  double unit() const { return rounding_unit(dtype()); }
  template <class Op>
  void run_op(const Op& op) {
    run(device(), op);
  }
  /// Memory for the frame's packed rows. What lies there before must not matter.
  std::unique_ptr<Memory> packed_for(const FrameAttention& op) {
    const std::size_t bytes =
        device().is_cuda() ? packed_bytes(device().cuda(), op) : packed_bytes(device().cpu(), op);
    auto made = std::make_unique<Memory>(device(), bytes);
    std::fill_n(made->change<std::uint8_t>(), bytes, std::uint8_t{0xff});
    return made;
  }
  MemoryLines lines_of(const FrameAttention& op, int first, int count) {
    return device().is_cuda() ? keys_and_values(device().cuda(), op, first, count)
                              : keys_and_values(device().cpu(), op, first, count);
  }
  std::vector<float> rounded(std::vector<float> values) const {
    for (float& v : values) v = rounded_to(dtype(), v);
    return values;
  }
};

TROUPE_ALL_DEVICES(VisionOps);

const auto kWithoutWgmma =
    testing::Combine(testing::Values(Where{.cuda = true, .like = "A100"}, Where{.cuda = true, .like = "A10"}),
                     testing::Values(DType::bf16, DType::f16));
std::string name_of(const testing::TestParamInfo<std::tuple<Where, DType>>& info) {
  return to_string(std::get<0>(info.param)) + "_" + to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Without, VisionOps, kWithoutWgmma, name_of);

TEST_P(VisionOps, PixelsAreNormalisedByColour) {
  std::vector<float> table(kPixelTable);
  fill_pixel_table(table.data());
  EXPECT_NEAR(table[0], -0.48145466 / 0.26862954, 1e-6);
  EXPECT_NEAR(table[256 + 255], (1 - 0.4578275) / 0.26130258, 1e-6);
  EXPECT_NEAR(table[512 + 128], (128 / 255.0 - 0.40821073) / 0.27577711, 1e-6);

  std::vector<std::uint8_t> patches(3 * kPatchBytes);
  for (std::size_t i = 0; i < patches.size(); ++i) patches[i] = static_cast<std::uint8_t>(i * 7 % 256);
  Rows out(device(), dtype(), 3, kPatchBytes);
  run_op(NormalisePatches{.out = out.data(),
                          .patches = device().put(patches),
                          .table = device().put(table),
                          .dtype = dtype(),
                          .rows = 3});
  for (int r = 0; r < 3; ++r) {
    for (int i = 0; i < kPatchBytes; ++i) {
      const auto byte = patches[static_cast<std::size_t>(r * kPatchBytes + i)];
      ASSERT_EQ(out.at(r, i), rounded_to(dtype(), table[static_cast<std::size_t>(i / 196 * 256 + byte)]));
    }
    for (int i = kPatchBytes; i < padded(kPatchBytes); ++i) ASSERT_EQ(out.at(r, i), 0) << "padding";
  }
}

TEST_P(VisionOps, LayerNorm) {
  constexpr int kRows = 9, kCols = 83;
  const auto values = random_floats(kRows * kCols, 1, 3), weights = random_floats(kCols, 2),
             biases = random_floats(kCols, 3);
  std::vector<float> shifted = values;
  for (float& v : shifted) v += 40;  // a mean far from 0 hides nothing
  Rows x(device(), DType::f32, kRows, kCols, shifted), weight(device(), DType::f32, 1, kCols, weights),
      bias(device(), DType::f32, 1, kCols, biases), out(device(), dtype(), kRows, kCols);
  run_op(LayerNorm{.out = out.data(),
                   .x = x.floats(),
                   .weight = weight.floats(),
                   .bias = bias.floats(),
                   .dtype = dtype(),
                   .rows = kRows,
                   .cols = kCols,
                   .eps = 1e-2f});
  for (int r = 0; r < kRows; ++r) {
    double mean = 0, variance = 0;
    for (int c = 0; c < kCols; ++c) mean += x.at(r, c) / kCols;
    for (int c = 0; c < kCols; ++c) variance += (x.at(r, c) - mean) * (x.at(r, c) - mean) / kCols;
    for (int c = 0; c < kCols; ++c) {
      const double expected =
          (x.at(r, c) - mean) / std::sqrt(variance + 1e-2) * weight.at(0, c) + bias.at(0, c);
      ASSERT_NEAR(out.at(r, c), expected, 1.01 * unit() * std::abs(expected) + 2e-5) << r << " " << c;
    }
    for (int c = kCols; c < padded(kCols); ++c) ASSERT_EQ(out.at(r, c), 0) << "padding";
  }
}

class VisionProducts : public VisionOps {
 protected:
  /// Every `step`-th row is compared.
  void check(int rows, int inputs, int outputs, int step) {
    const auto size = [](int a, int b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); };
    Weight weight(device(), dtype(), outputs, inputs, random_floats(size(outputs, inputs), 1, 0.3f));
    const auto biases = random_floats(static_cast<std::size_t>(outputs), 2);
    Rows x(device(), dtype(), rows, inputs, random_floats(size(rows, inputs), 3)),
        bias(device(), DType::f32, 1, outputs, biases), out(device(), dtype(), rows, outputs);
    const auto before = random_floats(size(rows, outputs), 4);
    for (const BiasEnding ending :
         {BiasEnding::store, BiasEnding::quick_gelu, BiasEnding::gelu, BiasEnding::set, BiasEnding::add}) {
      for (const bool biased : {true, false}) {
        Rows sum(device(), DType::f32, rows, outputs, before);
        run_op(LinearBias{.out = out.data(),
                          .sum = sum.floats(),
                          .x = x.data(),
                          .weight = weight.matrix,
                          .bias = biased ? bias.floats() : nullptr,
                          .rows = rows,
                          .ending = ending});
        const bool summed = ending == BiasEnding::set || ending == BiasEnding::add;
        const Rows& to = summed ? sum : out;
        for (int r = 0; r < rows; r = r + step < rows || r == rows - 1 ? r + step : rows - 1) {
          for (int o = 0; o < outputs; ++o) {
            const double y = weight.dot(o, [&](int i) { return static_cast<double>(x.at(r, i)); }) +
                             (biased ? static_cast<double>(biases[static_cast<std::size_t>(o)]) : 0);
            double expected = y;
            if (ending == BiasEnding::quick_gelu) expected = y / (1 + std::exp(-1.702 * y));
            if (ending == BiasEnding::gelu) expected = y / 2 * (1 + std::erf(y / std::numbers::sqrt2));
            if (ending == BiasEnding::add)
              expected += static_cast<double>(before[static_cast<std::size_t>(r * outputs + o)]);
            const double rounding = summed ? 0 : 1.01 * unit() * std::abs(expected);
            ASSERT_NEAR(to.at(r, o), expected, rounding + 4e-7 * inputs)
                << static_cast<int>(ending) << " " << r << " " << o;
          }
          for (int o = outputs; o < padded(outputs); ++o) ASSERT_EQ(to.at(r, o), 0) << "padding";
        }
      }
    }
  }
};

TROUPE_ALL_DEVICES(VisionProducts);
INSTANTIATE_TEST_SUITE_P(Without, VisionProducts, kWithoutWgmma, name_of);

TEST_P(VisionProducts, BiasAndEveryEnding) { check(37, 75, 45, 1); }

TEST_P(VisionProducts, FewRows) { check(3, 75, 45, 1); }

// Several tiles of a GPU's, the last ones cut in both directions, and more steps than its ring has slots.
TEST_P(VisionProducts, ManyTiles) {
  if (!where().cuda) GTEST_SKIP() << "of a GPU's tiles";
  check(300, 1096, 552, 59);
}

// As many tiles as the A100 has multiprocessors, the last ones cut, and an odd number of chunks of inputs.
TEST_P(VisionProducts, TilesForEveryMultiprocessor) {
  if (!where().cuda) GTEST_SKIP() << "of a GPU's tiles";
  check(1100, 200, 1560, 97);
}

TEST_P(VisionOps, RowsAreJoinedWithoutPadding) {
  constexpr int kCols = 21;
  const auto values = rounded(random_floats(12 * kCols, 1));
  Rows x(device(), dtype(), 12, kCols, values), four(device(), dtype(), 3, 4 * kCols),
      two(device(), dtype(), 6, 2 * kCols);
  run_op(JoinRows{.out = four.data(),
                  .x = x.data(),
                  .dtype = dtype(),
                  .rows = 3,
                  .cols = kCols,
                  .parts = 4,
                  .step = 4,
                  .stride = 1});
  run_op(JoinRows{.out = two.data(),
                  .x = x.data(),
                  .dtype = dtype(),
                  .rows = 6,
                  .cols = kCols,
                  .parts = 2,
                  .step = 1,
                  .stride = 6});
  for (int p = 0; p < 4; ++p) {
    for (int c = 0; c < kCols; ++c) {
      for (int r = 0; r < 3; ++r) ASSERT_EQ(four.at(r, p * kCols + c), x.at(4 * r + p, c));
      for (int r = 0; r < 6 && p < 2; ++r) ASSERT_EQ(two.at(r, p * kCols + c), x.at(r + 6 * p, c));
    }
  }
  for (int c = 4 * kCols; c < padded(4 * kCols); ++c) ASSERT_EQ(four.at(2, c), 0) << "padding";
}

// Of every row to every other, also later ones; 80 is the released models' head.
TEST_P(VisionOps, FrameAttention) {
  struct Shape {
    int rows, heads, head_dim;
  };
  for (const auto [rows, heads, head_dim] :
       {Shape{1, 1, 4}, Shape{33, 2, 12}, Shape{70, 3, 80}, Shape{129, 1, 64}, Shape{1, 2, 80},
        Shape{128, 1, 80}, Shape{651, 2, 80}}) {
    const int width = heads * head_dim, half = head_dim / 2;
    Rows qkv(device(), dtype(), rows, 3 * width,
             random_floats(static_cast<std::size_t>(rows * 3 * width), 1)),
        out(device(), dtype(), rows, width);
    std::vector<float> before, rope;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < 3 * width; ++c) before.push_back(qkv.at(r, c));
      for (int i = 0; i < half; ++i) {
        const double angle = 0.3 * r / (i + 1);
        rope.push_back(static_cast<float>(std::cos(angle)));
        rope.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    const float scale = 1.3f / std::sqrt(static_cast<float>(head_dim));
    FrameAttention op{.out = out.data(),
                      .dtype = dtype(),
                      .rows = rows,
                      .heads = heads,
                      .head_dim = head_dim,
                      .scale = scale,
                      .count = rows};
    const auto packed = packed_for(op);
    op.packed = packed->as();
    run_op(PackFrame{.packed = packed->as(),
                     .qkv = qkv.data(),
                     .rope = device().put(rope),
                     .dtype = dtype(),
                     .rows = rows,
                     .heads = heads,
                     .head_dim = head_dim,
                     .count = rows});
    run_op(op);
    const auto rotated = [&](int r, int part, int head, int d) {
      const auto at = [&](int i) {
        return static_cast<double>(
            before[static_cast<std::size_t>(r * 3 * width + part * width + head * head_dim + i)]);
      };
      const auto i = static_cast<std::size_t>(r * head_dim + 2 * (d % half));
      const double c = static_cast<double>(rope[i]), s = static_cast<double>(rope[i + 1]);
      return d < half ? at(d) * c - at(d + half) * s : at(d) * c + at(d - half) * s;
    };
    for (int head = 0; head < heads; ++head) {
      for (int r = 0; r < rows; r += 11) {
        std::vector<double> weights;
        double sum = 0;
        for (int s = 0; s < rows; ++s) {
          double score = 0;
          for (int d = 0; d < head_dim; ++d) score += rotated(r, 0, head, d) * rotated(s, 1, head, d);
          weights.push_back(std::exp(static_cast<double>(scale) * score));
          sum += weights.back();
        }
        for (int d = 0; d < head_dim; ++d) {
          double expected = 0;
          for (int s = 0; s < rows; ++s) {
            expected +=
                weights[static_cast<std::size_t>(s)] / sum *
                static_cast<double>(
                    before[static_cast<std::size_t>(s * 3 * width + 2 * width + head * head_dim + d)]);
          }
          ASSERT_NEAR(out.at(r, head * head_dim + d), expected, 8 * unit() + 1e-5)
              << rows << " " << r << " " << d;
        }
      }
    }
  }
}

// Pieces of the queries, and ranks that each pack some rows and send their keys and values, have the bits of
// the whole; a piece touches no row of the others.
TEST_P(VisionOps, FrameAttentionInPiecesAndByRanks) {
  for (const int head_dim : {12, 80}) {
    constexpr int kRows = 300, kHeads = 2;
    const int width = kHeads * head_dim;
    const auto values = random_floats(static_cast<std::size_t>(kRows * 3 * width), 5);
    std::vector<float> rope;
    for (int i = 0; i < kRows * head_dim / 2; ++i) {
      rope.push_back(std::cos(0.01f * static_cast<float>(i)));
      rope.push_back(std::sin(0.01f * static_cast<float>(i)));
    }
    const float* const angles = device().put(rope);
    FrameAttention op{.dtype = dtype(), .rows = kRows, .heads = kHeads, .head_dim = head_dim, .scale = 0.2f};
    const auto rows_of = [&](int first, int count) {
      const auto begin = values.begin() + first * 3 * width;
      return std::vector<float>(begin, begin + count * 3 * width);
    };
    const auto pack = [&](void* packed, const Rows& qkv, int first, int count) {
      run_op(PackFrame{.packed = packed,
                       .qkv = qkv.data(),
                       .rope = angles + first * head_dim,
                       .dtype = dtype(),
                       .rows = kRows,
                       .heads = kHeads,
                       .head_dim = head_dim,
                       .first = first,
                       .count = count});
    };
    const auto attend = [&](const void* packed, int first, int count) {
      Rows out(device(), dtype(), count + 1, width);
      op.out = out.data();
      op.packed = packed;
      op.first = first;
      op.count = count;
      run_op(op);
      for (int c = 0; c < width; ++c) EXPECT_EQ(out.at(count, c), 0) << "behind the piece";
      std::vector<float> all;
      for (int r = 0; r < count; ++r) {
        for (int c = 0; c < width; ++c) all.push_back(out.at(r, c));
      }
      return all;
    };
    using Pieces = std::vector<std::pair<int, int>>;
    const auto packed = packed_for(op);
    const Rows all_rows(device(), dtype(), kRows, 3 * width, values);
    pack(packed->as(), all_rows, 0, kRows);
    const auto whole = attend(packed->as(), 0, kRows);
    for (const Pieces& pieces : {Pieces{{0, 128}, {128, 128}, {256, 44}}, Pieces{{0, 256}, {256, 44}}}) {
      std::vector<float> all;
      for (const auto& [first, count] : pieces) {
        const auto some = attend(packed->as(), first, count);
        all.insert(all.end(), some.begin(), some.end());
      }
      EXPECT_EQ(all, whole);

      std::vector<std::unique_ptr<Memory>> ranks;
      for (const auto& [first, count] : pieces) {
        const Rows qkv(device(), dtype(), count, 3 * width, rows_of(first, count));
        pack(ranks.emplace_back(packed_for(op))->as(), qkv, first, count);
      }
      all.clear();
      for (std::size_t to = 0; to < pieces.size(); ++to) {
        for (std::size_t from = 0; from < pieces.size(); ++from) {
          if (from == to) continue;
          const MemoryLines lines = lines_of(op, pieces[from].first, pieces[from].second);
          for (std::size_t i = 0; i < lines.count; ++i) {
            const std::size_t at = lines.offset + i * lines.stride;
            std::copy_n(ranks[from]->host<std::uint8_t>() + at, lines.bytes,
                        ranks[to]->change<std::uint8_t>() + at);
          }
        }
        const auto some = attend(ranks[to]->as(), pieces[to].first, pieces[to].second);
        all.insert(all.end(), some.begin(), some.end());
      }
      EXPECT_EQ(all, whole) << "by ranks";
    }
    if (!device().is_cuda() || packs_in_place(device().cuda(), op)) {
      pack(all_rows.data(), all_rows, 0, kRows);
      EXPECT_EQ(attend(all_rows.data(), 0, kRows), whole) << "in place";
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
