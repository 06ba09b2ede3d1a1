// 8-bit keys and values on every device: codes and scales to the bit against a plain loop, and attention
// against double precision over the same codes, with scales that differ so much from token to token, head to
// head and layer to layer that a wrong one shows.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/attention.h"
#include "kernels/kv_writes.h"
#include "kernels/quantize_kv.h"

namespace troupe::kernels {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::int8, KvFormat::fp8};

/// e4m3 by its definition.
double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

double number_of(KvFormat format, std::uint8_t code) {
  return format == KvFormat::fp8 ? e4m3(code) : double(std::int8_t(code));
}

/// The code nearest to x, of two the even one.
std::uint8_t nearest_code(KvFormat format, float x) {
  if (format == KvFormat::int8)
    return std::uint8_t(std::int8_t(std::nearbyint(std::clamp(x, -127.0f, 127.0f))));
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const double was = std::abs(e4m3(best) - double(std::abs(x))),
                 is = std::abs(e4m3(code) - double(std::abs(x)));
    if (is < was || (is == was && code % 2 == 0)) best = code;
  }
  return std::uint8_t(best | (std::signbit(x) ? 0x80 : 0));
}

TEST(QuantiseKv, E4m3IsItsDefinition) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(e4m3_to_float(std::uint8_t(code))));
      continue;
    }
    EXPECT_EQ(double(e4m3_to_float(std::uint8_t(code))), e4m3(code)) << code;
    EXPECT_EQ(float_to_e4m3(e4m3_to_float(std::uint8_t(code))), code);
    if ((code & 0x7f) == 0x7e) continue;
    // The middle to the next code and its neighbours.
    const float middle = float((e4m3(code) + e4m3(code + 1)) / 2);
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1000.0f)})
      EXPECT_EQ(float_to_e4m3(x), nearest_code(KvFormat::fp8, x)) << code << " " << x;
  }
  EXPECT_EQ(float_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-449), 0xfe);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(QuantiseKv, Int8RoundsTiesToEvenAndClamps) {
  for (const auto& [number, code] : std::vector<std::pair<float, int>>{{0.5f, 0},
                                                                       {1.5f, 2},
                                                                       {-2.5f, -2},
                                                                       {126.5f, 126},
                                                                       {200, 127},
                                                                       {-200, -127},
                                                                       {-0.49f, 0},
                                                                       {3.51f, 4}}) {
    EXPECT_EQ(int(std::int8_t(kv_code(KvFormat::int8, number, 1))), code) << number;
  }
}

TEST(QuantiseKv, NothingAndNonsense) {
  for (const KvFormat format : kFormats) {
    EXPECT_EQ(kv_scale(format, 0), 0.0f);
    EXPECT_EQ(kv_code(format, 0, 0), 0);
    const float infinity = std::numeric_limits<float>::infinity();
    float largest = larger_magnitude(larger_magnitude(1, infinity), 5);
    EXPECT_TRUE(std::isnan(kv_scale(format, largest)));
    EXPECT_EQ(kv_code(format, 3, kv_scale(format, largest)), 0);
  }
}

TEST(QuantiseKv, ABlockIsWholeInEveryFormat) {
  for (const KvFormat format : kFormats) {
    const KvCache kv{.dtype = DType::bf16, .layers = 3, .kv_heads = 4, .head_dim = 128, .format = format};
    EXPECT_EQ(kv.block_bytes(), 3u * 4 * 2 * (64 * 128 + 64 * 4));
    EXPECT_EQ(kv.key_offset(2, 1, 3), 2 * kv.block_bytes() + (8 + 3) * kv.piece_bytes());
    EXPECT_EQ(kv.value_offset(0, 2, 1), (16 + 4 + 1) * kv.piece_bytes());
  }
}

class QuantisedKv : public OpTest {};
TROUPE_ALL_DEVICES(QuantisedKv);

// The plain cache of the same rows tells the numbers; a loop makes codes and scales of them.
TEST_P(QuantisedKv, CodesAndScalesToTheBit) {
  for (const HeadShape& s : {HeadShape{2, 2, 64}, HeadShape{5, 1, 96}, HeadShape{16, 2, 128},
                             HeadShape{3, 1, 256}, HeadShape{2, 2, 6}, HeadShape{12, 1, 32}}) {
    const int outputs = (s.heads + 2 * s.kv_heads) * s.head_dim;
    const int hidden = s.head_dim == 128 ? 1024 : 64;  // 1024: every kind of product on the GPU
    const Weight weight(device(), dtype(), outputs, hidden,
                        random_floats(std::size_t(outputs * hidden), 3, 0.2f));
    for (const auto& [first, tokens] : {std::pair{0, 1}, std::pair{60, 75}, std::pair{63, 2}}) {
      const KvCache plain{
          .dtype = dtype(), .layers = kLayers, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
      const Written numbers = write(device(), dtype(), s, KvFormat::plain, first, tokens, weight, hidden);
      for (const KvFormat format : kFormats) {
        SCOPED_TRACE(std::string(to_string(format)) + ", head_dim " + std::to_string(s.head_dim));
        KvCache kv = plain;
        kv.format = format;
        const Written coded = write(device(), dtype(), s, format, first, tokens, weight, hidden);
        EXPECT_EQ(coded.q, numbers.q);
        std::vector<std::byte> expected(coded.memory.size(), kUntouched);
        for (int r = 0; r <= tokens; ++r) {
          const int position = r < tokens ? first + r : 7;
          const BlockId block = r == tokens ? 2 : std::vector<BlockId>{4, 1, 5}[std::size_t(position / 64)];
          const int t = position % 64;
          for (int head = 0; head < 2 * s.kv_heads; ++head) {
            const bool value = head >= s.kv_heads;
            const std::byte* from = numbers.memory.data() + plain.key_offset(block, kLayer, head);
            const auto number = [&](int d) {
              return load_element(from, dtype(), plain_at(where().cuda, plain, value, t, d));
            };
            float largest = 0;
            for (int d = 0; d < s.head_dim; ++d) largest = std::max(largest, std::abs(number(d)));
            const float scale = largest / (format == KvFormat::int8 ? 127.0f : 448.0f);
            std::byte* to = expected.data() + kv.key_offset(block, kLayer, head);
            std::memcpy(to + kv.code_bytes() + std::size_t(t) * 4, &scale, 4);
            for (int d = 0; d < s.head_dim; ++d) {
              const std::uint8_t code = scale > 0 ? nearest_code(format, number(d) / scale) : 0;
              to[code_at(where().cuda, kv, value, t, d)] = std::byte{code};
            }
          }
        }
        std::size_t wrong = 0, at = 0;
        for (std::size_t i = expected.size(); i-- > 0;) {
          if (expected[i] != coded.memory[i]) ++wrong, at = i;
        }
        EXPECT_EQ(wrong, 0u) << "of " << expected.size() << " bytes, the first at " << at;
      }
    }
  }
}

/// Numbers in [0, 1), computed from an index.
float uniform_number(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t x = (seed << 40) + i * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return float((x ^ (x >> 31)) >> 40) * 0x1p-24f;
}

/// Sequences whose past is written directly, as codes and scales. What no token owns is NaN (scales) or 0xff.
class QuantisedKvScene {
 public:
  QuantisedKvScene(DeviceUnderTest& device, DType dtype, KvFormat format, HeadShape shape,
                   const std::vector<StepPart>& pieces, int spare_blocks = 0)
      : device_(device), dtype_(dtype), shape_(shape), pieces_(pieces) {
    std::vector<int> first;
    int blocks = 1 + spare_blocks;
    for (const StepPart& piece : pieces) {
      first.push_back(blocks);
      blocks += (piece.position + piece.tokens + kBlockTokens - 1) / kBlockTokens;
      rows_ += piece.tokens;
    }
    std::vector<BlockId> order(static_cast<std::size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    kv_ = {.dtype = dtype,
           .layers = kLayers,
           .kv_heads = shape.kv_heads,
           .head_dim = shape.head_dim,
           .format = format};
    memory_.assign(std::size_t(blocks) * kv_.block_bytes(), std::byte{0xff});
    const BlockId* table = device_.is_cuda() ? device_.put(order) : nullptr;
    tables_ = order;
    if (!device_.is_cuda()) table = tables_.data();
    int row = 0;
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      for (int t = 0; t < pieces[s].position + pieces[s].tokens; ++t) {
        const BlockId block = order[std::size_t(first[s] + t / kBlockTokens)];
        for (int layer = 0; layer < kLayers; ++layer) {
          for (int h = 0; h < 2 * shape.kv_heads; ++h) write_token(int(s), block, layer, h, t);
        }
      }
      sequences_.push_back({table + first[s], pieces[s].position, pieces[s].tokens, row});
      row += pieces[s].tokens;
    }
    kv_.data = device_.put(memory_);
    const int width = padded(shape.heads * shape.head_dim);
    std::vector<std::byte> q(std::size_t(rows_ * width) * size_of(dtype));
    for (int r = 0; r < rows_; ++r) {
      for (int i = 0; i < shape.heads * shape.head_dim; ++i)
        store_element(q.data(), dtype, std::size_t(r * width + i), query(r, i));
    }
    op_ = {.q = device_.put(q),
           .kv = kv_,
           .layer = kLayer,
           .heads = shape.heads,
           .scale = 1 / std::sqrt(float(shape.head_dim)),
           .batch = {device_.put(sequences_), nullptr, int(sequences_.size()), rows_},
           .settled = true};
  }

  /// `channels`: static scales of V, or empty.
  std::vector<std::byte> run_op(const std::vector<float>& channels = {}) {
    const std::size_t bytes = row_bytes() * std::size_t(rows_);
    std::vector<std::byte> out(bytes, std::byte{0xff});
    Attention op = op_;
    op.out = device_.put(out);
    if (!channels.empty()) {
      const float* const given = device_.put(channels);
      op.static_kv = {given, given};
    }
    run(device_, op);
    device_.download(out.data(), op.out, bytes);
    return out;
  }

  /// Largest difference from double precision relative to the row's and head's largest output, over every
  /// `step`-th row and the last of each sequence.
  double worst(const std::vector<std::byte>& out, int step = 1) const {
    double worst = 0;
    int row = 0;
    for (std::size_t s = 0; s < pieces_.size(); ++s) {
      for (int t = 0; t < pieces_[s].tokens; ++t, ++row) {
        if (t % step != 0 && t != pieces_[s].tokens - 1) continue;
        for (int h = 0; h < shape_.heads; ++h) {
          const auto expected = reference(int(s), row, h, pieces_[s].position + t + 1);
          double most = 0;
          for (const double e : expected) most = std::max(most, std::abs(e));
          for (int d = 0; d < shape_.head_dim; ++d) {
            const float got = load_element(out.data() + std::size_t(row) * row_bytes(), dtype_,
                                           std::size_t(h * shape_.head_dim + d));
            const double error = std::abs(double(got) - expected[std::size_t(d)]) / most;
            if (std::isnan(error)) return error;
            worst = std::max(worst, error);
          }
        }
      }
    }
    return worst;
  }

  /// Probabilities are rounded to bf16 whatever the 16-bit dtype.
  double tolerance() const { return dtype_ == DType::f32 ? 3e-5 : 3 * rounding_unit(DType::bf16); }
  std::size_t row_bytes() const {
    return std::size_t(padded(shape_.heads * shape_.head_dim)) * size_of(dtype_);
  }

 private:
  static std::uint64_t seed(int s, int layer, int head) {
    return std::uint64_t((s * 2 + layer) * 64 + head + 1);
  }
  /// Of head h of K, or kv_heads + h of V. Neighbouring tokens, heads and layers differ by factors.
  float scale(int s, int layer, int head, int t) const {
    const float spread = std::exp2(4 * uniform_number(seed(s, layer, head), std::uint64_t(t)) - 2);
    return (head < shape_.kv_heads ? 0.02f : 0.5f) * spread / largest_code(kv_.format);
  }
  std::uint8_t code(int s, int layer, int head, int t, int d) const {
    const auto bits =
        std::uint64_t(uniform_number(seed(s, layer, head) + 100000, std::uint64_t(t * 512 + d)) * 0x1p20f);
    if (kv_.format == KvFormat::int8) return std::uint8_t(std::int8_t(int(bits % 255) - 127));
    const auto exponent = bits / 8 % 16 == 0 ? bits / 128 % 11 : 11 + bits / 8 % 5;  // mostly large codes
    return std::uint8_t(bits % 7 | exponent << 3 | (bits >> 8 & 0x80));
  }
  void write_token(int s, BlockId block, int layer, int head, int t) {
    std::byte* piece = memory_.data() + kv_.key_offset(block, layer, head);
    const int at = t % kBlockTokens;
    const float factor = scale(s, layer, head, t);
    std::memcpy(piece + kv_.code_bytes() + std::size_t(at) * 4, &factor, 4);
    for (int d = 0; d < shape_.head_dim; ++d) {
      piece[code_at(device_.is_cuda(), kv_, head >= shape_.kv_heads, at, d)] =
          std::byte{code(s, layer, head, t, d)};
    }
  }
  float query(int row, int i) const {
    return rounded_to(dtype_, 40 * (uniform_number(0, std::uint64_t(row) * 65536 + std::uint64_t(i)) - 0.5f));
  }

  std::vector<double> reference(int s, int row, int h, int length) const {
    const int kv_head = h / (shape_.heads / shape_.kv_heads);
    std::vector<double> p(static_cast<std::size_t>(length)), out(static_cast<std::size_t>(shape_.head_dim));
    double most = -1e30, sum = 0;
    std::vector<double> q;
    for (int d = 0; d < shape_.head_dim; ++d) q.push_back(double(query(row, h * shape_.head_dim + d)));
    for (int t = 0; t < length; ++t) {
      double score = 0;
      for (int d = 0; d < shape_.head_dim; ++d)
        score += q[std::size_t(d)] * number_of(kv_.format, code(s, kLayer, kv_head, t, d));
      p[std::size_t(t)] = score * double(scale(s, kLayer, kv_head, t)) * double(op_.scale);
      most = std::max(most, p[std::size_t(t)]);
    }
    for (double& v : p) sum += v = std::exp(v - most);
    for (int t = 0; t < length; ++t) {
      const int head = shape_.kv_heads + kv_head;
      const double weight = p[std::size_t(t)] / sum * double(scale(s, kLayer, head, t));
      for (int d = 0; d < shape_.head_dim; ++d)
        out[std::size_t(d)] += weight * number_of(kv_.format, code(s, kLayer, head, t, d));
    }
    return out;
  }

  DeviceUnderTest& device_;
  DType dtype_;
  HeadShape shape_;
  std::vector<StepPart> pieces_;
  int rows_ = 0;
  KvCache kv_;
  std::vector<std::byte> memory_;
  std::vector<BlockId> tables_;
  std::vector<SequenceRows> sequences_;
  Attention op_;
};

std::string name(KvFormat format, HeadShape s) {
  return std::string(to_string(format)) + " " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) +
         "/" + std::to_string(s.head_dim);
}

constexpr HeadShape kQuantisedKvShapes[] = {{1, 1, 64},  {5, 1, 64},   {16, 2, 64}, {12, 1, 64},
                                            {5, 1, 96},  {2, 2, 96},   {1, 1, 128}, {10, 2, 128},
                                            {8, 1, 128}, {12, 1, 128}, {5, 1, 256}, {2, 2, 256}};

TEST_P(QuantisedKv, DecodeAgainstDoublePrecision) {
  for (const KvFormat format : kFormats) {
    for (const HeadShape& shape : kQuantisedKvShapes) {
      QuantisedKvScene scene(device(), dtype(), format, shape,
                             {{0}, {62}, {63}, {64}, {1}, {700}, {127}, {128}, {14}, {15}});
      EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance()) << name(format, shape);
    }
  }
}

TEST_P(QuantisedKv, StaticScalesOfValuesMultiplyTheOutput) {
  for (const HeadShape& s : {HeadShape{10, 2, 128}, HeadShape{5, 1, 96}}) {
    QuantisedKvScene scene(device(), dtype(), KvFormat::int8, s, {{0}, {63}, {64, 30}, {200}});
    const std::vector<float> channels = drawn_channels(s, 5);
    const std::vector<std::byte> plain = scene.run_op(), scaled = scene.run_op(channels);
    for (int r = 0; r < 33; ++r) {
      for (int i = 0; i < s.heads * s.head_dim; ++i) {
        const int kv_head = i / s.head_dim / (s.heads / s.kv_heads);
        const float factor = channels[std::size_t(kv_head * s.head_dim + i % s.head_dim)] * (1 / 127.0f);
        const std::size_t at = std::size_t(r * padded(s.heads * s.head_dim) + i);
        EXPECT_EQ(load_element(scaled.data(), dtype(), at),
                  rounded_to(dtype(), load_element(plain.data(), dtype(), at) * factor));
      }
    }
  }
}

TEST_P(QuantisedKv, LongPast) {
  for (const KvFormat format : kFormats) {
    for (const HeadShape& shape :
         {HeadShape{5, 1, 128}, HeadShape{8, 1, 64}, HeadShape{12, 1, 64}, HeadShape{5, 1, 96}}) {
      QuantisedKvScene scene(device(), dtype(), format, shape, {{2999}, {3}, {1500}});
      EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance()) << name(format, shape);
      QuantisedKvScene alone(device(), dtype(), format, shape, {{2047}});
      EXPECT_LE(alone.worst(alone.run_op()), alone.tolerance()) << name(format, shape);
    }
  }
}

TEST_P(QuantisedKv, PromptsBesideDecodeRows) {
  // The CPU has one way for all shapes, and is always invariant.
  const std::vector<HeadShape> shapes =
      where().cuda ? std::vector<HeadShape>{{5, 1, 128}, {16, 2, 64}, {12, 1, 128}, {2, 2, 96}, {1, 1, 256}}
                   : std::vector<HeadShape>{{5, 1, 128}, {2, 2, 96}};
  for (const KvFormat format : kFormats) {
    for (const HeadShape& shape : shapes) {
      const std::vector<StepPart> pieces{{200}, {0, 150}, {0}, {77, 70}, {64, 2}, {511}, {1000, 40}};
      QuantisedKvScene scene(device(), dtype(), format, shape, pieces);
      EXPECT_LE(scene.worst(scene.run_op(), 7), scene.tolerance()) << name(format, shape);
      if (!where().cuda) continue;
      QuantisedKvScene other(invariant_device(), dtype(), format, shape, pieces);
      EXPECT_LE(other.worst(other.run_op(), 7), other.tolerance()) << name(format, shape);
    }
  }
}

// The copy of expanded pages has room for the first sequence alone; decode rows stay between the others.
TEST_P(QuantisedKv, PastsBeyondTheExpandedCopy) {
  if (!where().cuda || dtype() != DType::bf16) GTEST_SKIP() << "Only CUDA with bfloat16 expands pages.";
  for (const KvFormat format : kFormats) {
    for (const HeadShape& shape : {HeadShape{3, 1, 64}, HeadShape{9, 1, 64}}) {
      QuantisedKvScene scene(device(), dtype(), format, shape,
                             {{90, 3}, {100000, 2}, {5}, {60000, 3}, {70}, {1, 2}});
      EXPECT_LE(scene.worst(scene.run_op(), 3), scene.tolerance()) << name(format, shape);
    }
  }
}

TEST_P(QuantisedKv, RowsDoNotDependOnOtherRows) {
  for (const KvFormat format : kFormats) {
    for (const HeadShape& shape : {HeadShape{5, 1, 128}, HeadShape{3, 1, 64}, HeadShape{3, 1, 96}}) {
      QuantisedKvScene alone(invariant_device(), dtype(), format, shape, {{1000, 3}});
      QuantisedKvScene company(invariant_device(), dtype(), format, shape, {{1000, 3}, {2000}, {0, 90}, {3}});
      const auto a = alone.run_op(), b = company.run_op();
      EXPECT_EQ(std::memcmp(a.data(), b.data(), 3 * alone.row_bytes()), 0) << name(format, shape);
      QuantisedKvScene single(invariant_device(), dtype(), format, shape, {{1000}});
      const auto c = single.run_op();
      EXPECT_EQ(std::memcmp(a.data(), c.data(), alone.row_bytes()), 0) << name(format, shape);
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
