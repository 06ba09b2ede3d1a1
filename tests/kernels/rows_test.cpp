// Ops on single rows (embedding, RMSNorm, rotary table), packing, and copies of KV blocks.
#include <cstring>

#include "kernels/add_rms_norm.h"
#include "kernels/copy_blocks.h"
#include "kernels/device_under_test.h"
#include "kernels/embed.h"
#include "kernels/lm_head.h"
#include "kernels/place_rows.h"
#include "kernels/rope_table.h"

namespace troupe::kernels {
namespace {

class RowOps : public OpTest {};
TROUPE_ALL_DEVICES(RowOps);

TEST_P(RowOps, NormMatchesHandComputedNumbers) {
  Rows h(device(), DType::f32, 1, 4, {1, 2, 3, 4}), weight(device(), DType::f32, 1, 4, {1, 1, 1, 2});
  Rows out(device(), dtype(), 1, 4);
  run(device(), AddRmsNorm{.out = out.data(),
                           .residual = h.floats(),
                           .weight = weight.floats(),
                           .dtype = dtype(),
                           .rows = 1,
                           .cols = 4});
  EXPECT_NEAR(out.at(0, 0), 0.365148f, 0.37 * rounding_unit(dtype()) + 1e-6);
  EXPECT_NEAR(out.at(0, 3), 2 * 1.460593f, 3 * rounding_unit(dtype()) + 1e-6);
}

TEST_P(RowOps, NormRoundsBeforeTheWeight) {
  constexpr int kRows = 11, kCols = 83;
  const auto values = random_floats(kRows * kCols, 1, 3), added = random_floats(kRows * kCols, 2);
  Rows h(device(), DType::f32, kRows, kCols, values), add(device(), DType::f32, kRows, kCols, added);
  std::vector<float> w = random_floats(kCols, 3);
  for (float& v : w) v = rounded_to(dtype(), v);
  Rows weight(device(), DType::f32, 1, kCols, w), out(device(), dtype(), kRows, kCols);
  run(device(), AddRmsNorm{.out = out.data(),
                           .residual = h.floats(),
                           .add = add.floats(),
                           .weight = weight.floats(),
                           .dtype = dtype(),
                           .rows = kRows,
                           .cols = kCols,
                           .eps = 1e-3f});
  for (int r = 0; r < kRows; ++r) {
    double squares = 0;
    for (int c = 0; c < kCols; ++c) {
      const float sum = values[std::size_t(r * kCols + c)] + added[std::size_t(r * kCols + c)];
      ASSERT_EQ(h.at(r, c), sum) << "the residual is written back";
      squares += double(sum) * sum;
    }
    int off = 0;
    for (int c = 0; c < kCols; ++c) {
      const float unit = rounded_to(dtype(), float(h.at(r, c) / std::sqrt(squares / kCols + 1e-3)));
      const float expected = rounded_to(dtype(), unit * w[std::size_t(c)]);
      // The last bit of the fp32 factor may change a rounding, by one unit at most.
      off += out.at(r, c) != expected;
      ASSERT_NEAR(out.at(r, c), expected, 4.1 * rounding_unit(dtype()) * std::abs(expected));
    }
    if (dtype() != DType::f32) {
      EXPECT_LE(off, 2) << r;
    }
    for (int c = kCols; c < padded(kCols); ++c) ASSERT_EQ(out.at(r, c), 0) << "padding";
  }
}

TEST_P(RowOps, NormOfPickedRows) {
  constexpr int kCols = 40;
  Rows h(device(), DType::f32, 5, kCols, random_floats(5 * kCols, 4));
  Rows weight(device(), DType::f32, 1, kCols, std::vector<float>(kCols, 1));
  Rows all(device(), dtype(), 5, kCols), some(device(), dtype(), 2, kCols);
  AddRmsNorm op{.out = all.data(),
                .residual = h.floats(),
                .weight = weight.floats(),
                .dtype = dtype(),
                .rows = 5,
                .cols = kCols};
  run(device(), op);
  const std::int32_t pick[] = {4, 1};
  op.out = some.data();
  op.pick = device().put(pick, 2);
  op.rows = 2;
  run(device(), op);
  EXPECT_EQ(std::memcmp(some.row(0), all.row(4), some.row_bytes()), 0);
  EXPECT_EQ(std::memcmp(some.row(1), all.row(1), some.row_bytes()), 0);
}

TEST_P(RowOps, EmbedReadsRowsOfAPackedTable) {
  constexpr int kVocab = 70, kHidden = 45;
  const Weight table(device(), dtype(), kVocab, kHidden, random_floats(kVocab * kHidden, 5));
  const TokenId tokens[] = {0, 69, 31, 32, 31};
  Rows out(device(), DType::f32, 5, kHidden, std::vector<float>(5 * kHidden, 7));
  run(device(),
      Embed{.out = out.floats(), .tokens = device().put(tokens, 5), .table = table.matrix, .rows = 5});
  for (int r = 0; r < 5; ++r) {
    for (int c = 0; c < kHidden; ++c)
      ASSERT_EQ(out.at(r, c), table.values[std::size_t(tokens[r] * kHidden + c)]);
    ASSERT_EQ(out.at(r, kHidden), 0) << "padding";
  }
}

TEST_P(RowOps, PackConvertsTransposesAndConcatenates) {
  constexpr int kInputs = 38;
  const std::array<int, 3> parts{40, 9, 70};  // the parts end inside panels
  const int outputs = parts[0] + parts[1] + parts[2];
  std::vector<float> values = random_floats(std::size_t(outputs * kInputs), 6);
  for (float& v : values) v = bf16_to_float(float_to_bf16(v));  // exact in bf16 and fp32; fp16 rounds
  for (const bool transposed : {false, true}) {
    for (const DType source_dtype : all_dtypes()) {
      const Memory memory(device(), matrix_bytes(dtype(), outputs, kInputs));
      const Matrix matrix{memory.as(), dtype(), outputs, kInputs};
      for (const int part : {2, 0, 1}) {
        const int first = part == 0 ? 0 : part == 1 ? parts[0] : parts[0] + parts[1];
        const int count = parts[std::size_t(part)];
        std::vector<std::uint32_t> source(
            std::size_t(count * kInputs));  // host memory, aligned for all dtypes
        for (int o = 0; o < count; ++o) {
          for (int i = 0; i < kInputs; ++i) {
            store_element(source.data(), source_dtype,
                          std::size_t(transposed ? i * count + o : o * kInputs + i),
                          values[std::size_t((first + o) * kInputs + i)]);
          }
        }
        run(device(), Pack{.into = matrix,
                           .source = source.data(),
                           .source_dtype = source_dtype,
                           .transposed = transposed,
                           .first = first,
                           .outputs = count});
      }
      std::vector<TokenId> tokens;
      for (int o = 0; o < outputs; ++o) tokens.push_back(o);
      Rows out(device(), DType::f32, outputs, kInputs);
      run(device(),
          Embed{.out = out.floats(), .tokens = device().put(tokens), .table = matrix, .rows = outputs});
      for (int o = 0; o < outputs; ++o) {
        for (int i = 0; i < kInputs; ++i) {
          const float v = values[std::size_t(o * kInputs + i)];
          ASSERT_EQ(out.at(o, i), rounded_to(dtype(), rounded_to(source_dtype, v))) << o << " " << i;
        }
      }
    }
  }
}

// A file's bytes are read piece by piece: as many as go at a time, lines with a gap between them, any
// address.
TEST_P(RowOps, PackReadsAFileAsItReadsMemory) {
  struct Case {
    int outputs, inputs, gap;
    bool transposed;
  };
  // 9 MiB transposed are more than is read at a time.
  for (const Case& c :
       {Case{100, 70, 0, false}, Case{33, 64, 5, false}, Case{45, 77, 3, true}, Case{3000, 1600, 0, true}}) {
    const int lines = c.transposed ? c.inputs : c.outputs, line = c.transposed ? c.outputs : c.inputs;
    const std::vector<float> values = random_floats(std::size_t(lines * (line + c.gap)), 11);
    std::vector<std::uint16_t> source(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) store_element(source.data(), DType::bf16, i, values[i]);
    std::string file(13, '?');  // the tensor is not aligned
    file.append(reinterpret_cast<const char*>(source.data()), source.size() * 2);
    const MemoryBytes bytes(file.data());
    const Memory expected(device(), matrix_bytes(dtype(), c.outputs, c.inputs)),
        got(device(), matrix_bytes(dtype(), c.outputs, c.inputs));
    Pack pack{.into = {expected.as(), dtype(), c.outputs, c.inputs},
              .source = source.data(),
              .transposed = c.transposed,
              .source_stride = line + c.gap,
              .outputs = c.outputs};
    run(device(), pack);
    pack.into.data = got.as();
    pack.source = nullptr;
    pack.file = &bytes;
    pack.offset = 13;
    run(device(), pack);
    ASSERT_EQ(std::memcmp(got.host(), expected.host(), got.bytes()), 0) << c.outputs << "x" << c.inputs;
  }
}

TEST(Rope, FrequenciesOfTheModelCard) {
  float frequencies[64];
  rope_inverse_frequencies(frequencies, 128, 500000);
  EXPECT_FLOAT_EQ(frequencies[0], 1.0f);
  EXPECT_FLOAT_EQ(frequencies[1], 0.8146172338565447f);
  EXPECT_FLOAT_EQ(frequencies[2], 0.6636012376960885f);
  EXPECT_FLOAT_EQ(frequencies[43], 1.4825335432657046e-4f);
  EXPECT_FLOAT_EQ(frequencies[44], 1.2076973741146504e-4f);
  EXPECT_FLOAT_EQ(frequencies[63], 2.455140791131609e-6f);
}

// Pairs of a head of 128 that turn by rows and columns in turn, the last 20 by time; angles by hand.
TEST_P(RowOps, RopeTableOnThreeAxes) {
  constexpr int kDim = 128, kHalf = kDim / 2;
  std::vector<float> frequencies(kHalf);
  rope_inverse_frequencies(frequencies.data(), kDim, 500000);
  std::vector<std::uint8_t> axis(kHalf, 0);
  for (std::size_t i = 0; i < 44; ++i) axis[i] = i % 2 == 0 ? 1 : 2;
  const std::vector<std::int32_t> positions{5, 5, 5, 7, 3, 11};
  const Memory table(device(), 2 * kDim * sizeof(float));
  run(device(), RopeTable{.out = table.as<float>(),
                          .positions = device().put(positions),
                          .inverse_frequencies = device().put(frequencies),
                          .axis = device().put(axis),
                          .axes = 3,
                          .rows = 2,
                          .head_dim = kDim});
  const float* of_row = table.host<float>() + kDim;
  // x[j] = j / 128, rotated at time 7, row 3, column 11.
  const auto rotated = [&](int j) {
    const float x = static_cast<float>(j / 2 * 2) / 128, y = static_cast<float>(j / 2 * 2 + 1) / 128;
    const float c = of_row[j / 2 * 2], s = of_row[j / 2 * 2 + 1];
    return j % 2 == 0 ? x * c - y * s : y * c + x * s;
  };
  const std::pair<int, float> expected[] = {
      {0, -0.001103f}, {1, -0.007734f}, {2, -0.024462f}, {3, -0.013967f},  {86, 0.670766f},
      {87, 0.680782f}, {88, 0.686912f}, {89, 0.695893f}, {126, 0.984358f}, {127, 0.992204f}};
  for (const auto& [j, value] : expected) EXPECT_NEAR(rotated(j), value, 2e-6) << j;
  // Equal positions are those of text.
  const Memory text(device(), kDim * sizeof(float));
  run(device(), RopeTable{.out = text.as<float>(),
                          .positions = device().put(std::vector<std::int32_t>{5}),
                          .inverse_frequencies = device().put(frequencies),
                          .rows = 1,
                          .head_dim = kDim});
  for (int i = 0; i < kDim; ++i) ASSERT_EQ(table.host<float>()[i], text.host<float>()[i]);
}

TEST_P(RowOps, PlacedRowsAreTheirNumbers) {
  constexpr int kCols = 45;
  const Rows from(device(), dtype(), 3, kCols, random_floats(3 * kCols, 1));
  const Rows to(device(), DType::f32, 5, kCols, std::vector<float>(5 * kCols, 9));
  run(device(), PlaceRows{.out = to.floats() + padded(kCols),
                          .rows = from.data(),
                          .dtype = dtype(),
                          .count = 3,
                          .cols = kCols});
  for (int c = 0; c < kCols; ++c) {
    for (int r = 0; r < 3; ++r) ASSERT_EQ(to.at(r + 1, c), from.at(r, c));
    ASSERT_EQ(to.at(0, c), 9);
    ASSERT_EQ(to.at(4, c), 9);
  }
}

TEST_P(RowOps, RopeTableIsCosineAndSineOfTheFp32Angle) {
  constexpr int kRows = 20, kHeadDim = 8;
  std::vector<float> frequencies(kHeadDim / 2);
  rope_inverse_frequencies(frequencies.data(), kHeadDim, 10000);
  std::vector<std::int32_t> positions;
  for (int r = 0; r < kRows; ++r) positions.push_back(r * r * 331);
  const Memory table(device(), kRows * kHeadDim * sizeof(float));
  run(device(), RopeTable{.out = table.as<float>(),
                          .positions = device().put(positions),
                          .inverse_frequencies = device().put(frequencies),
                          .rows = kRows,
                          .head_dim = kHeadDim});
  const float* made = table.host<float>();
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kHeadDim / 2; ++i) {
      const float angle = float(positions[std::size_t(r)]) * frequencies[std::size_t(i)];
      EXPECT_NEAR(made[std::size_t(r * kHeadDim + 2 * i)], std::cos(double(angle)), 1.5e-7);
      EXPECT_NEAR(made[std::size_t(r * kHeadDim + 2 * i + 1)], std::sin(double(angle)), 1.5e-7);
    }
  }
}

void copy_blocks(DeviceUnderTest& device, KvCache kv, std::size_t block_bytes) {
  Memory memory(device, 5 * kv.block_bytes());
  kv.data = memory.as();
  EXPECT_EQ(kv.block_bytes(), block_bytes);
  auto* bytes = memory.change<unsigned char>();
  for (std::size_t i = 0; i < 5 * kv.block_bytes(); ++i)
    bytes[i] = static_cast<unsigned char>(i / kv.block_bytes() + 1);
  const BlockPair pairs[] = {{0, 3}, {2, 4}};
  run(device, CopyBlocks{.kv = kv, .pairs = pairs, .count = 2});
  const auto* after = memory.host<unsigned char>();
  for (const auto& [block, value] : {std::pair{0, 1}, {1, 2}, {2, 3}, {3, 1}, {4, 3}}) {
    for (std::size_t i = 0; i < kv.block_bytes(); ++i) {
      ASSERT_EQ(after[std::size_t(block) * kv.block_bytes() + i], value) << block;
    }
  }
}

// With the scales of an 8-bit cache.
TEST_P(RowOps, CopyWholeBlocks) {
  for (const KvFormat format : {KvFormat::plain, KvFormat::int8, KvFormat::fp8}) {
    copy_blocks(device(),
                {.dtype = DType::bf16, .layers = 2, .kv_heads = 1, .head_dim = 32, .format = format},
                format == KvFormat::plain ? 2u * 2 * 64 * 32 * 2 : 2u * 2 * 64 * (32 + 4));
  }
}

TEST(DTypes, HalvesRoundToNearestEven) {
  EXPECT_EQ(float_to_f16(1.0f), 0x3c00);
  EXPECT_EQ(float_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(float_to_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(float_to_f16(-0x1.8p-25f), 0x8001);
  EXPECT_EQ(float_to_f16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(float_to_f16(1.0f + 0x3p-11f), 0x3c02);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0f + 0x3p-8f), 0x3f82);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(std::nanf("")))));
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<std::uint16_t>(bits);
    if (!std::isnan(f16_to_float(h))) {
      ASSERT_EQ(float_to_f16(f16_to_float(h)), h);
    }
    if (!std::isnan(bf16_to_float(h))) {
      ASSERT_EQ(float_to_bf16(bf16_to_float(h)), h);
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
