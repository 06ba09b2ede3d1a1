// Projection with rotary embedding into KV memory, and attention over it: against double precision, for
// every group size; and the same bits whatever the chunks, the neighbours, the blocks and the threads.
#include "kernels/attention.h"

#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/device_under_test.h"
#include "kernels/qkv_rope_kv_write.h"
#include "kernels/rope_table.h"

namespace troupe::kernels {
namespace {

struct AttentionLayerShape {
  int heads, kv_heads, head_dim, hidden;
};

/// One layer's attention over a pool of blocks, fed chunk by chunk.
class AttentionLayer {
 public:
  static constexpr int kLayers = 2, kLayer = 1;

  AttentionLayer(DeviceUnderTest& device, DType dtype, AttentionLayerShape shape, int blocks,
                 KvFormat format = KvFormat::plain)
      : device_(device),
        dtype_(dtype),
        shape_(shape),
        weight_(device, dtype, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, shape.hidden,
                random_floats(std::size_t((shape.heads + 2 * shape.kv_heads) * shape.head_dim * shape.hidden),
                              1, 1.5f / std::sqrt(float(shape.hidden)))),
        kv_{.dtype = dtype,
            .layers = kLayers,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .format = format},
        memory_(device, std::size_t(blocks) * kv_.block_bytes()),
        frequencies_(std::size_t(shape.head_dim / 2)) {
    kv_.data = memory_.as();
    rope_inverse_frequencies(frequencies_.data(), shape.head_dim, 10000);
  }

  /// Fills KV memory as if an earlier tenant had computed nonsense.
  void poison(int blocks) {
    auto* all = memory_.change();
    for (std::size_t i = 0; i < std::size_t(blocks) * kv_.block_bytes() / size_of(dtype_); ++i) {
      store_element(all, dtype_, i, std::numeric_limits<float>::quiet_NaN());
    }
  }

  /// Runs the rows of one batch; x has a row per token, in the order of the sequences, whose blocks are host
  /// memory.
  void step(std::vector<SequenceRows> sequences, const Rows& x, Rows& q, Rows& out) {
    const int rows = x.rows();
    std::vector<KvSlot> slots(static_cast<std::size_t>(rows));
    std::vector<std::int32_t> positions(static_cast<std::size_t>(rows));
    describe_rows(sequences.data(), int(sequences.size()), slots.data(), positions.data());
    for (SequenceRows& s : sequences) {
      s.blocks =
          device_.put(s.blocks, std::size_t((s.position + s.tokens + kBlockTokens - 1) / kBlockTokens));
    }
    const Memory rope(device_, std::size_t(rows * shape_.head_dim) * sizeof(float));
    const Memory unquantised(device_, kv_.unquantised_bytes(rows) + 64);
    run(device_, RopeTable{.out = rope.as<float>(),
                           .positions = device_.put(positions),
                           .inverse_frequencies = device_.put(frequencies_),
                           .rows = rows,
                           .head_dim = shape_.head_dim});
    const Batch batch{device_.put(sequences), device_.put(slots), int(sequences.size()), rows};
    run(device_, QkvRopeKvWrite{.q = q.data(),
                                .x = x.data(),
                                .weight = weight_.matrix,
                                .rope = rope.as<float>(),
                                .kv = kv_,
                                .layer = kLayer,
                                .heads = shape_.heads,
                                .batch = batch,
                                .unquantised = unquantised.as()});
    run(device_, Attention{.out = out.data(),
                           .q = q.data(),
                           .kv = kv_,
                           .layer = kLayer,
                           .heads = shape_.heads,
                           .scale = 1 / std::sqrt(float(shape_.head_dim)),
                           .batch = batch,
                           .settled = true,
                           .first = first_});
  }

  void attend_from(int first) { first_ = first; }
  int first() const { return first_; }
  int width() const { return shape_.heads * shape_.head_dim; }
  const Weight& weight() const { return weight_; }
  const std::vector<float>& frequencies() const { return frequencies_; }

 private:
  DeviceUnderTest& device_;
  DType dtype_;
  AttentionLayerShape shape_;
  Weight weight_;
  KvCache kv_;
  int first_ = 0;
  Memory memory_;
  std::vector<float> frequencies_;
};

/// The same in double precision, without blocks, for the positions from layer.first() on; q, k, v and
/// probabilities rounded as the op does.
std::vector<double> reference(const AttentionLayer& layer, DType dtype, AttentionLayerShape s,
                              const Rows& x) {
  const int tokens = x.rows(), outputs = (s.heads + 2 * s.kv_heads) * s.head_dim;
  std::vector<double> y(std::size_t(tokens * outputs));
  for (int t = 0; t < tokens; ++t) {
    for (int o = 0; o < outputs; ++o) {
      y[std::size_t(t * outputs + o)] = layer.weight().dot(o, [&](int i) { return x.at(t, i); });
    }
    for (int o = 0; o < (s.heads + s.kv_heads) * s.head_dim; o += 2) {
      const double angle =
          double(float(t + layer.first()) * layer.frequencies()[std::size_t(o % s.head_dim / 2)]);
      double& even = y[std::size_t(t * outputs + o)];
      double& odd = y[std::size_t(t * outputs + o + 1)];
      const double a = even * std::cos(angle) - odd * std::sin(angle);
      odd = odd * std::cos(angle) + even * std::sin(angle);
      even = a;
    }
    for (int o = 0; o < outputs; ++o) {
      double& v = y[std::size_t(t * outputs + o)];
      v = rounded_to(dtype, float(v));
    }
  }
  std::vector<double> out(std::size_t(tokens * s.heads * s.head_dim));
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < s.heads; ++h) {
      const int kv_head = h / (s.heads / s.kv_heads);
      const double* q = &y[std::size_t(t * outputs + h * s.head_dim)];
      std::vector<double> p(std::size_t(t + 1));
      double sum = 0;
      for (int u = 0; u <= t; ++u) {
        const double* k = &y[std::size_t(u * outputs + (s.heads + kv_head) * s.head_dim)];
        p[std::size_t(u)] = std::exp(std::inner_product(q, q + s.head_dim, k, 0.0) / std::sqrt(s.head_dim));
        sum += p[std::size_t(u)];
      }
      for (int u = 0; u <= t; ++u) {
        const double* v = &y[std::size_t(u * outputs + (s.heads + s.kv_heads + kv_head) * s.head_dim)];
        for (int d = 0; d < s.head_dim; ++d) {
          out[std::size_t((t * s.heads + h) * s.head_dim + d)] += p[std::size_t(u)] / sum * v[d];
        }
      }
    }
  }
  return out;
}

std::vector<BlockId> blocks_from(int first, int count) {
  std::vector<BlockId> blocks(static_cast<std::size_t>(count));
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

class PagedAttention : public OpTest {
 protected:
  void expect_reference(const AttentionLayer& layer, AttentionLayerShape shape, const Rows& x,
                        const Rows& out) {
    const int tokens = x.rows();
    const auto expected = reference(layer, dtype(), shape, x);
    double worst = 0;
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < layer.width(); ++i) {
        worst = std::max(worst, std::abs(out.at(t, i) - expected[std::size_t(t * layer.width() + i)]));
      }
    }
    // A query or key that fell on the other side of a rounding border moves a score a little; on the GPU a
    // probability is rounded before the row's largest score is known, too.
    EXPECT_LE(worst, 2e-5 + (where().cuda ? 8 : 6) * rounding_unit(dtype()))
        << shape.heads << "/" << shape.kv_heads << "/" << shape.head_dim;
  }
};
TROUPE_ALL_DEVICES(PagedAttention);

TEST_P(PagedAttention, AgainstDoublePrecision) {
  struct Case {
    AttentionLayerShape shape;
    int tokens;  // beyond 1024: three spans of the past are merged
  };
  for (const auto& [shape, tokens] :
       {Case{{3, 1, 16, 24}, 1100}, Case{{6, 2, 32, 33}, 150}, Case{{5, 1, 64, 48}, 150},
        Case{{8, 1, 128, 64}, 150}, Case{{2, 2, 48, 31}, 150}, Case{{10, 2, 40, 20}, 150}}) {
    AttentionLayer layer(device(), dtype(), shape, 20);
    layer.poison(20);
    const Rows x(device(), dtype(), tokens, shape.hidden,
                 random_floats(std::size_t(tokens * shape.hidden), 2));
    Rows q(device(), dtype(), tokens, layer.width()), out(device(), dtype(), tokens, layer.width());
    auto blocks = blocks_from(1, 18);
    std::swap(blocks[0], blocks[2]);
    layer.step({{blocks.data(), 0, tokens, 0}}, x, q, out);
    expect_reference(layer, shape, x, out);
  }
}

// KV slot 0 of the draft layer is never written: whatever lies there has no effect.
TEST_P(PagedAttention, FromASecondTokenOn) {
  struct Case {
    AttentionLayerShape shape;
    int tokens;
  };
  for (const auto& [shape, tokens] :
       {Case{{3, 1, 16, 24}, 600}, Case{{6, 2, 32, 33}, 1}, Case{{2, 2, 48, 31}, 150},
        Case{{5, 1, 64, 48}, 150}, Case{{8, 1, 128, 64}, 1}, Case{{8, 1, 128, 64}, 150}}) {
    AttentionLayer layer(device(), dtype(), shape, 12);
    layer.poison(12);
    layer.attend_from(1);
    const Rows x(device(), dtype(), tokens, shape.hidden,
                 random_floats(std::size_t(tokens * shape.hidden), 2));
    Rows q(device(), dtype(), tokens, layer.width()), out(device(), dtype(), tokens, layer.width());
    const auto blocks = blocks_from(1, 11);
    layer.step({{blocks.data(), 1, tokens, 0}}, x, q, out);
    expect_reference(layer, shape, x, out);
  }
}

void expect_the_same_bits(DeviceUnderTest& first, Where where, DType dtype, KvFormat format) {
  SCOPED_TRACE(to_string(format));
  constexpr AttentionLayerShape kShape{6, 2, 32, 16};
  constexpr int kTokens = 1170;  // three spans of 512
  constexpr int kBlocks = (kTokens + 63) / 64;
  const auto values = random_floats(std::size_t{kTokens} * kShape.hidden, 3);
  const Rows x(first, dtype, kTokens, kShape.hidden, values);
  AttentionLayer whole(first, dtype, kShape, kBlocks, format);
  Rows q(first, dtype, kTokens, whole.width()), expected(first, dtype, kTokens, whole.width());
  const auto straight = blocks_from(0, kBlocks);
  whole.step({{straight.data(), 0, kTokens, 0}}, x, q, expected);

  struct Case {
    int threads;
    std::vector<int> chunks;  // the last one repeats until the end
  };
  for (const Case& c : {Case{1, {kTokens}}, Case{2, {1, 63, 64, 65, 1, 200}}, Case{3, {511, 1, 1, 37}},
                        Case{2, {1100, 1}}, Case{1, {1020, 7}}}) {
    const auto other = device_at(where, c.threads, true);
    AttentionLayer layer(*other, dtype, kShape, 2 * kBlocks + 4, format);
    layer.poison(2 * kBlocks + 4);
    auto blocks = blocks_from(3, kBlocks);
    std::reverse(blocks.begin(), blocks.end());
    const auto neighbours = blocks_from(kBlocks + 3, kBlocks);
    int done = 0;
    for (std::size_t i = 0; done < kTokens; ++i) {
      const int tokens = std::min(kTokens - done, c.chunks[std::min(i, c.chunks.size() - 1)]);
      const bool company = i % 2 == 1;  // a neighbour's row before and after ours in every other batch
      const int rows = tokens + (company ? 1 : 0);
      Rows in(*other, dtype, rows, kShape.hidden), qs(*other, dtype, rows, layer.width());
      Rows out(*other, dtype, rows, layer.width());
      const int at = company ? 1 : 0;
      for (int t = 0; t < tokens; ++t) {
        for (int j = 0; j < kShape.hidden; ++j) in.set(at + t, j, x.at(done + t, j));
      }
      std::vector<SequenceRows> sequences;
      if (company) {
        for (int j = 0; j < kShape.hidden; ++j) in.set(0, j, 3.0f - float(j));
        sequences.push_back({neighbours.data(), 0, 1, 0});
      }
      sequences.push_back({blocks.data(), done, tokens, at});
      layer.step(sequences, in, qs, out);
      for (int t = 0; t < tokens; ++t) {
        ASSERT_EQ(std::memcmp(out.row(at + t), expected.row(done + t), out.row_bytes()), 0)
            << "token " << done + t << " in a chunk of " << tokens << ", " << c.threads << " threads";
      }
      done += tokens;
    }
  }
}

TEST_P(PagedAttention, BitsDoNotDependOnChunksNeighboursBlocksOrThreads) {
  for (const KvFormat format : {KvFormat::plain, KvFormat::int8, KvFormat::fp8})
    expect_the_same_bits(invariant_device(), where(), dtype(), format);
}

TEST_P(PagedAttention, OneTokenLooksAtItselfAlone) {
  constexpr AttentionLayerShape kShape{2, 1, 32, 4};
  AttentionLayer layer(device(), dtype(), kShape, 1);
  layer.poison(1);
  const Rows x(device(), dtype(), 1, 4, {1, -2, 0.5f, 3});
  Rows q(device(), dtype(), 1, 64), out(device(), dtype(), 1, 64);
  const BlockId block = 0;
  layer.step({{&block, 0, 1, 0}}, x, q, out);
  for (int i = 0; i < 32; ++i) {
    const auto value = float(layer.weight().dot(96 + i, [&](int j) { return x.at(0, j); }));
    EXPECT_NEAR(out.at(0, i), value, 1e-6 + 2.1 * rounding_unit(dtype()) * std::abs(value));
    EXPECT_EQ(out.at(0, i), out.at(0, 32 + i)) << "both heads of the group see the same value";
  }
}

TEST_P(PagedAttention, GoldenRotation) {
  // x[j] = j / 128 at position 3 with theta 500000, one head of 128 through an identity projection.
  constexpr int kDim = 128;
  std::vector<float> identity(std::size_t{3} * kDim * kDim);
  for (int i = 0; i < 3 * kDim; ++i) identity[std::size_t(i * kDim + i % kDim)] = 1;
  const Weight weight(device(), dtype(), 3 * kDim, kDim, identity);
  Rows x(device(), dtype(), 1, kDim), q(device(), dtype(), 1, kDim);
  for (int j = 0; j < kDim; ++j) x.set(0, j, float(j) / 128);
  float frequencies[kDim / 2];
  rope_inverse_frequencies(frequencies, kDim, 500000);
  const std::int32_t position = 3;
  const Memory rope(device(), sizeof(float) * kDim);
  run(device(), RopeTable{.out = rope.as<float>(),
                          .positions = device().put(&position, 1),
                          .inverse_frequencies = device().put(frequencies, kDim / 2),
                          .rows = 1,
                          .head_dim = kDim});
  KvCache kv{.dtype = dtype(), .layers = 1, .kv_heads = 1, .head_dim = kDim};
  const Memory memory(device(), kv.block_bytes());
  kv.data = memory.as();
  const BlockId block = 0;
  const SequenceRows sequence{device().put(&block, 1), 3, 1, 0};
  const KvSlot slot{0, 3};
  run(device(), QkvRopeKvWrite{.q = q.data(),
                               .x = x.data(),
                               .weight = weight.matrix,
                               .rope = rope.as<float>(),
                               .kv = kv,
                               .heads = 1,
                               .batch = {device().put(&sequence, 1), device().put(&slot, 1), 1, 1}});
  for (const auto& [i, expected] : std::vector<std::pair<int, float>>{{0, -0.001103f},
                                                                      {1, -0.007734f},
                                                                      {2, -0.027032f},
                                                                      {3, -0.007921f},
                                                                      {86, 0.671573f},
                                                                      {87, 0.679986f},
                                                                      {88, 0.687248f},
                                                                      {89, 0.695562f},
                                                                      {126, 0.984368f},
                                                                      {127, 0.992195f}}) {
    EXPECT_NEAR(q.at(0, i), expected, 1e-6 + 1.01 * rounding_unit(dtype()) * std::abs(expected)) << i;
  }
}

}  // namespace
}  // namespace troupe::kernels
