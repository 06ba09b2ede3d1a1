// Attention of prompt chunks on the GPU, in the sizes and mixtures that a server sees: long pasts, many
// sequences, chunk boundaries, NaN in memory that no token owns. Compared with double precision.
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "kernels/attention.h"
#include "kernels/cuda/product/layout.h"
#include "kernels/device_under_test.h"
#include "kernels/head_shape.h"

namespace troupe::kernels {
namespace {

/// Tokens [position, position + tokens) of a prompt; `prompt` is the seed of its values.
struct Chunk {
  int position = 0, tokens = 0, prompt = 0;
};

std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

enum class Kind { query, key, value };

/// Element d of head h of a token, uniform in ±limit; the same at every call.
float number(DType dtype, Kind kind, int prompt, int position, int head, int d, float limit = 1.7f) {
  const std::uint32_t seed = mixed(mixed(std::uint32_t(prompt * 4 + int(kind))) + std::uint32_t(position));
  const std::uint32_t bits = mixed(seed + std::uint32_t(head * 128 + d));
  return rounded_to(dtype, limit * (float(bits >> 8) * 0x1p-23f - 1));
}

class Prompts {
 public:
  Prompts(DeviceUnderTest& device, DType dtype, HeadShape shape, std::vector<Chunk> chunks,
          float key_growth = 0)
      : device_(device), dtype_(dtype), shape_(shape), chunks_(std::move(chunks)), key_growth_(key_growth) {
    kv_ = {.dtype = dtype, .layers = 1, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
    int blocks = 5;
    for (const Chunk& c : chunks_) blocks += blocks_of(c);
    // Blocks in random order, and NaN wherever there is no token.
    std::vector<BlockId> order(static_cast<std::size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    std::vector<std::byte> image(std::size_t(blocks) * kv_.block_bytes(), std::byte{0xff});
    int next = 0;
    for (const Chunk& c : chunks_) {
      const BlockId* mine = order.data() + next;
      next += blocks_of(c);
      sequences_.push_back({c.tokens == 0 ? nullptr : device.put(mine, std::size_t(blocks_of(c))), c.position,
                            c.tokens, rows_});
      rows_ += c.tokens;
      if (c.tokens == 0) continue;
      for (int t = 0; t < c.position + c.tokens; ++t) write_token(image.data(), mine[t / kBlockTokens], c, t);
    }
    memory_ = std::make_unique<Memory>(device, image.size());
    kv_.data = memory_->as();
    device.upload(kv_.data, image.data(), image.size());
    q_ = std::make_unique<Rows>(device, dtype, rows_, width());
    out_ = std::make_unique<Rows>(device, dtype, rows_, width());
    for (std::size_t s = 0; s < chunks_.size(); ++s) {
      for (int t = 0; t < chunks_[s].tokens; ++t) {
        for (int i = 0; i < width(); ++i) {
          q_->set(sequences_[s].row + t, i, query(chunks_[s], t, i / shape.head_dim, i % shape.head_dim));
        }
      }
    }
  }

  const Rows& attend() {
    run(device_, Attention{.out = out_->data(),
                           .q = q_->data(),
                           .kv = kv_,
                           .heads = shape_.heads,
                           .scale = 1 / std::sqrt(float(shape_.head_dim)),
                           .batch = {device_.put(sequences_), nullptr, int(sequences_.size()), rows_}});
    return *out_;
  }

  /// Largest error over `tokens` tokens of each chunk (the first, the last, and some between), relative to
  /// the largest expected value.
  double worst_error(int tokens) const {
    double worst = 0, most = 0;
    for (std::size_t s = 0; s < chunks_.size(); ++s) {
      const Chunk& c = chunks_[s];
      std::set<int> chosen;
      for (int i = 0; i < std::min(tokens, c.tokens); ++i) {
        chosen.insert(i < tokens / 3       ? i
                      : i < tokens / 3 * 2 ? c.tokens - 1 - i + tokens / 3
                                           : int(mixed(std::uint32_t(i)) % std::uint32_t(c.tokens)));
      }
      for (const int t : chosen) {
        for (int h = 0; h < shape_.heads; ++h) {
          const auto expected = reference(s, t, h);
          for (int d = 0; d < shape_.head_dim; ++d) {
            const double got = out_->at(sequences_[s].row + t, h * shape_.head_dim + d);
            if (std::isnan(got)) return std::numeric_limits<double>::infinity();
            worst = std::max(worst, std::abs(got - expected[std::size_t(d)]));
            most = std::max(most, std::abs(expected[std::size_t(d)]));
          }
        }
      }
    }
    return worst / most;
  }

  int rows() const { return rows_; }
  int width() const { return shape_.heads * shape_.head_dim; }

 private:
  static int blocks_of(const Chunk& c) {
    return c.tokens == 0 ? 0 : (c.position + c.tokens + kBlockTokens - 1) / kBlockTokens;
  }
  float query(const Chunk& c, int t, int head, int d) const {
    if (key_growth_ > 0) return 1;
    return number(dtype_, Kind::query, c.prompt, c.position + t, head, d);
  }
  /// With key_growth, each key's score is higher than the one before by that amount.
  float key(const Chunk& c, int t, int head, int d) const {
    if (key_growth_ > 0)
      return rounded_to(dtype_, key_growth_ * float(t) / std::sqrt(float(shape_.head_dim)));
    return number(dtype_, Kind::key, c.prompt, t, head, d);
  }
  float value(const Chunk& c, int t, int head, int d) const {
    return number(dtype_, Kind::value, c.prompt, t, head, d);
  }

  void write_token(std::byte* image, BlockId block, const Chunk& c, int t) const {
    const bool swizzled = cuda::swizzled(dtype_, shape_.head_dim);
    for (int h = 0; h < shape_.kv_heads; ++h) {
      for (int d = 0; d < shape_.head_dim; ++d) {
        const auto at = std::size_t(cuda::kv_index(swizzled, shape_.head_dim, t % kBlockTokens, d));
        store_element(image + kv_.key_offset(block, 0, h), dtype_, at, key(c, t, h, d));
        store_element(image + kv_.value_offset(block, 0, h), dtype_, at, value(c, t, h, d));
      }
    }
  }

  /// Keys and values of a chunk's KV head, [token][dimension].
  struct Past {
    std::vector<float> keys, values;
  };
  const Past& past(std::size_t chunk, int kv_head) const {
    Past& made = pasts_[{chunk, kv_head}];
    if (!made.keys.empty()) return made;
    const Chunk& c = chunks_[chunk];
    for (int t = 0; t < c.position + c.tokens; ++t) {
      for (int d = 0; d < shape_.head_dim; ++d) {
        made.keys.push_back(key(c, t, kv_head, d));
        made.values.push_back(value(c, t, kv_head, d));
      }
    }
    return made;
  }

  std::vector<double> reference(std::size_t chunk, int t, int head) const {
    const Chunk& c = chunks_[chunk];
    const Past& seen = past(chunk, head / (shape_.heads / shape_.kv_heads));
    const auto dims = std::size_t(shape_.head_dim), keys = std::size_t(c.position + t + 1);
    std::vector<double> scores(keys), out(dims);
    std::vector<float> q(dims);
    for (std::size_t d = 0; d < dims; ++d) q[d] = query(c, t, head, int(d));
    double most = -1e300, sum = 0;
    for (std::size_t u = 0; u < keys; ++u) {
      double dot = 0;
      for (std::size_t d = 0; d < dims; ++d) dot += double(q[d]) * double(seen.keys[u * dims + d]);
      scores[u] = dot / std::sqrt(shape_.head_dim);
      most = std::max(most, scores[u]);
    }
    for (double& score : scores) sum += score = std::exp(score - most);
    for (std::size_t u = 0; u < keys; ++u) {
      for (std::size_t d = 0; d < dims; ++d) out[d] += scores[u] / sum * double(seen.values[u * dims + d]);
    }
    return out;
  }

  DeviceUnderTest& device_;
  DType dtype_;
  HeadShape shape_;
  std::vector<Chunk> chunks_;
  float key_growth_;
  KvCache kv_;
  std::vector<SequenceRows> sequences_;
  mutable std::map<std::pair<std::size_t, int>, Past> pasts_;
  int rows_ = 0;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Rows> q_, out_;
};

class PrefillAttention : public OpTest {
 protected:
  double tolerance() const { return dtype() == DType::f32 ? 1e-4 : 2.5 * rounding_unit(dtype()); }
};
INSTANTIATE_TEST_SUITE_P(On, PrefillAttention,
                         testing::Combine(testing::Values(Where{.cuda = true},
                                                          Where{.cuda = true, .like = "A100"}),
                                          testing::ValuesIn(all_dtypes())),
                         [](const auto& info) {
                           return to_string(std::get<0>(info.param)) + "_" +
                                  to_string(std::get<1>(info.param));
                         });

TEST_P(PrefillAttention, ShapesAndMixtures) {
  const std::vector<Chunk> mixture{{5, 1, 1},   {70, 129, 2}, {900, 1, 3}, {0, 33, 4},
                                   {127, 2, 5}, {333, 65, 6}, {0, 0, 0},   {0, 0, 0}};
  for (const HeadShape shape : {HeadShape{16, 2, 128}, HeadShape{20, 4, 128}, HeadShape{9, 3, 64},
                                HeadShape{4, 4, 128}, HeadShape{7, 1, 64}, HeadShape{12, 2, 64}}) {
    Prompts prompts(device(), dtype(), shape, mixture);
    prompts.attend();
    EXPECT_LE(prompts.worst_error(9), tolerance())
        << shape.heads << "/" << shape.kv_heads << "/" << shape.head_dim;
  }
}

TEST_P(PrefillAttention, EveryBoundaryOfPagesAndTiles) {
  std::vector<Chunk> chunks;
  for (const int position : {0, 1, 63, 64, 65, 127, 128, 190}) {
    for (const int tokens : {2, 15, 16, 17, 63, 64, 65, 128}) {
      chunks.push_back({position, tokens, int(chunks.size())});
    }
  }
  Prompts prompts(device(), dtype(), {8, 1, 64}, chunks);
  prompts.attend();
  EXPECT_LE(prompts.worst_error(6), tolerance());
}

TEST_P(PrefillAttention, LongPast) {
  if (dtype() == DType::f32)
    GTEST_SKIP() << "fp32 runs the general kernel, which has no way of its own for a long past";
  for (const auto& [shape, chunk] : {std::pair{HeadShape{5, 1, 128}, Chunk{57344, 700, 1}},
                                     std::pair{HeadShape{8, 1, 128}, Chunk{131040, 32, 2}},
                                     std::pair{HeadShape{3, 1, 64}, Chunk{20000, 4097, 3}}}) {
    Prompts prompts(device(), dtype(), shape, {chunk});
    prompts.attend();
    EXPECT_LE(prompts.worst_error(3), 2 * tolerance()) << chunk.position;
  }
}

TEST_P(PrefillAttention, MoreSequencesThanOneLaunchTakes) {
  std::vector<Chunk> chunks;
  for (int i = 0; i < 1500; ++i) chunks.push_back({i % 5 * 13, 1 + i % 3, i});
  Prompts prompts(device(), dtype(), {4, 1, 64}, chunks);
  prompts.attend();
  EXPECT_LE(prompts.worst_error(3), tolerance());
}

TEST_P(PrefillAttention, OtherChunkSizesGiveTheSameOutput) {
  constexpr int kTokens = 1300;
  constexpr HeadShape kShape{10, 2, 128};
  Prompts whole(device(), dtype(), kShape, {{0, kTokens, 1}});
  const Rows& expected = whole.attend();
  for (const std::vector<int>& sizes : {std::vector{64, 500, 2, 734}, std::vector{999, 301}}) {
    int done = 0;
    for (const int tokens : sizes) {
      Prompts chunk(device(), dtype(), kShape, {{done, tokens, 1}});
      const Rows& out = chunk.attend();
      double worst = 0;
      for (int t = 0; t < tokens; ++t) {
        for (int i = 0; i < whole.width(); ++i) {
          worst = std::max(worst, std::abs(double(out.at(t, i)) - double(expected.at(done + t, i))));
        }
      }
      EXPECT_LE(worst, std::max(1e-5, 2 * rounding_unit(dtype()))) << "tokens from " << done << " on";
      done += tokens;
    }
  }
}

TEST_P(PrefillAttention, ScoresThatRiseWithEveryKey) {
  // Each key's score is higher than the one before, so the row's maximum changes with every key and only the
  // last keys matter at the end. Scores are in the hundreds, so their rounding errors show after exp().
  for (const float growth : {0.05f, 0.5f, 20.0f}) {
    Prompts prompts(device(), dtype(), {8, 1, 128}, {{40, 600, 1}}, growth);
    prompts.attend();
    EXPECT_LE(prompts.worst_error(12), std::max(5e-4, tolerance())) << growth;
  }
}

TEST_P(PrefillAttention, TheSameBitsEveryTime) {
  Prompts prompts(device(), dtype(), {20, 4, 128}, {{0, 700, 1}, {300, 400, 2}, {64, 1, 3}, {1000, 90, 4}});
  const Rows& out = prompts.attend();
  const std::vector<std::byte> first(out.row(0), out.row(0) + std::size_t(out.rows()) * out.row_bytes());
  for (int i = 0; i < 5; ++i) {
    prompts.attend();
    ASSERT_EQ(std::memcmp(out.row(0), first.data(), first.size()), 0);
  }
}

}  // namespace
}  // namespace troupe::kernels
