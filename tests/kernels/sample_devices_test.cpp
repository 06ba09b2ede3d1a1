// Sampling gives the same tokens on every device: random rows with random parameters, compared with the CPU.
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <numeric>

#include "kernels/sampler.h"

namespace troupe::kernels {
namespace {

class SamplerEverywhere : public Sampler {};
INSTANTIATE_TEST_SUITE_P(On, SamplerEverywhere, testing::ValuesIn(everywhere()),
                         [](const auto& info) { return to_string(info.param); });

/// Rows with parameters of every kind, and logits of every shape.
class RandomRows {
 public:
  RandomRows(int vocab, int count, std::uint32_t seed) : vocab_(vocab), random_(seed) {
    stride_ = padded(vocab);
    logits.resize(std::size_t(stride_) * std::size_t(count));
    for (int i = 0; i < count; ++i) {
      fill(logits.data() + std::size_t(i) * std::size_t(stride_));
      rows.push_back(row(i));
    }
  }
  int stride() const { return stride_; }

  std::vector<SampleRow> rows;
  std::vector<float> logits;

 private:
  int below(int n) { return int(random_() % std::uint32_t(n)); }
  float uniform() { return float(random_() >> 8) * 0x1p-24f; }
  float any(std::initializer_list<float> values) { return values.begin()[below(int(values.size()))]; }

  void fill(float* z) {
    const int kind = below(10);
    std::normal_distribution<float> normal(any({0, -30, 7}), any({1e-3f, 0.3f, 1, 3, 10}));
    for (int v = 0; v < vocab_; ++v) {
      const float x = normal(random_);
      z[v] = kind == 0   ? 0.25f                                       // all equal
             : kind == 1 ? float(below(4))                             // few values
             : kind <= 4 ? bf16_to_float(float_to_bf16(x))             // ties
             : kind == 5 ? (v % 97 == 5 ? x + 12 : x)                  // many peaks
             : kind == 6 ? std::copysign(std::exp(uniform() * 80), x)  // enormous
             : kind == 7 ? (below(2) != 0 ? 0.0f : -0.0f)              // zeros of both signs
                         : x;
    }
    if (kind == 8) z[below(vocab_)] += 15;  // one peak
    if (below(25) == 0) z[below(vocab_)] = any({INFINITY, -INFINITY, NAN});
  }

  SampleRow row(int i) {
    SampleRow row{
        .logits_row = below(20) == 0 ? -1 : i, .seed = random_(), .position = std::uint32_t(below(1000))};
    row.temperature = any({0, 1e-3f, 0.1f, 0.8f, 1, 2, 0.05f + 2 * uniform(), 1e-42f});
    if (below(2) == 0) row.top_p = any({0.8f, 0.95f, 1e-6f, 0.9999f, 0.01f + 0.98f * uniform()});
    if (below(3) == 0)
      row.top_k = std::min<int>(vocab_ + 1, below(2) == 0 ? 1 + below(60) : 1 + below(vocab_));
    if (below(3) == 0) row.min_p = any({0.05f, 1, 1e-7f, uniform()});
    if (below(3) == 0) row.logprobs = below(kMaxTopLogprobs + 1);
    if (below(3) == 0) {
      if (below(2) == 0) row.repetition_penalty = any({1.1f, 0.7f, 2, 1e-30f});
      if (below(2) == 0) row.presence_penalty = any({-2, 0.3f, 1.7f});
      if (below(2) == 0) row.frequency_penalty = any({-0.2f, 0.1f, 1.9f});
      row.known_tokens = below(2) == 0 ? 1 + below(40) : 1 + below(5000);
      row.prompt_tokens = below(row.known_tokens + 1);
      auto& tokens = ids_.emplace_back(std::size_t(row.known_tokens));
      const int range = below(2) == 0 ? vocab_ : std::min(vocab_, 50);
      for (TokenId& id : tokens) id = below(range);
      row.tokens = tokens.data();
    }
    if (below(4) == 0) {
      auto& bias = bias_.emplace_back(std::size_t(1 + below(30)));
      for (TokenBias& b : bias) b = {below(std::min(vocab_, 100)), 20 * uniform() - 10};  // some ids twice
      row.bias = bias.data();
      row.bias_count = int(bias.size());
    }
    if (below(4) == 0) {
      auto& banned = ids_.emplace_back(std::size_t(1 + below(3)));
      for (TokenId& id : banned) id = below(std::min(vocab_, 60));
      row.banned = banned.data();
      row.banned_count = int(banned.size());
    }
    if (below(3) == 0) row.mask = mask();
    return row;
  }

  /// Few ids or one, all but a few, or any; bits past the vocabulary are set too.
  const std::uint32_t* mask() {
    auto& words = masks_.emplace_back(mask_words(vocab_));
    const int kind = below(5);
    for (std::uint32_t& word : words) word = kind < 2 ? 0 : kind == 2 ? ~0u : std::uint32_t(random_());
    if (kind == 4) {  // long stretches that allow nothing, as JSON has them
      for (std::size_t w = 0; w < words.size(); ++w) words[w] &= w / 16 % 3 == 0 ? ~0u : 0u;
    }
    for (int n = kind == 0 ? 1 : 1 + below(20); n > 0; --n) {
      const int id = below(vocab_);
      if (kind == 2) words[std::size_t(id / 32)] &= ~(1u << id % 32);
      if (kind != 2) words[std::size_t(id / 32)] |= 1u << id % 32;
    }
    const int one = below(std::min(vocab_, 60));  // at least one; maybe a banned or biased one
    words[std::size_t(one / 32)] |= 1u << one % 32;
    return words.data();
  }

  int vocab_, stride_ = 0;
  std::mt19937 random_;
  std::deque<std::vector<std::uint32_t>> masks_;
  std::deque<std::vector<TokenId>> ids_;
  std::deque<std::vector<TokenBias>> bias_;
};

/// Expects that `count` random rows give the same results on both devices.
void expect_the_same(DeviceUnderTest& device, DeviceUnderTest& reference, int vocab, int count) {
  const RandomRows random(vocab, count, std::uint32_t(1000 + vocab));
  std::vector<TokenId> next, next_expected;
  const auto expected =
      sampled(reference, random.rows, random.logits, vocab, random.stride(), &next_expected);
  const auto got = sampled(device, random.rows, random.logits, vocab, random.stride(), &next);
  EXPECT_EQ(next, next_expected) << vocab;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const SampleRow& row = random.rows[i];
    const SampleResult &a = got[i], &b = expected[i];
    ASSERT_TRUE(a.token == b.token && a.error == b.error)
        << "vocab " << vocab << " row " << i << ": token " << a.token << ", not " << b.token
        << "; temperature " << row.temperature << " top_p " << row.top_p << " top_k " << row.top_k
        << " min_p " << row.min_p << " penalties " << row.repetition_penalty << " " << row.presence_penalty
        << " " << row.frequency_penalty << " known " << row.known_tokens << " bias " << row.bias_count
        << " banned " << row.banned_count << " mask " << (row.mask != nullptr) << " logprobs "
        << row.logprobs;
    if (row.mask != nullptr && row.logits_row >= 0 && a.error == SampleError::none) {
      ASSERT_TRUE((row.mask[a.token / 32] >> a.token % 32 & 1) != 0) << vocab << " row " << i;
    }
    ASSERT_EQ(a.top_count, b.top_count) << vocab << " " << i;
    const auto near = [](float x, float y) { return std::abs(x - y) <= 1e-5f + 2e-7f * std::abs(y); };
    if (row.logits_row >= 0 && row.logprobs >= 0 && b.error == SampleError::none) {
      ASSERT_TRUE(near(a.logprob, b.logprob)) << a.logprob << " " << b.logprob;
    }
    for (int j = 0; j < a.top_count; ++j) {
      ASSERT_EQ(a.top[j].token, b.top[j].token) << vocab << " " << i << " " << j;
      ASSERT_TRUE(near(a.top[j].logprob, b.top[j].logprob)) << a.top[j].logprob << " " << b.top[j].logprob;
    }
  }
}

TEST_P(SamplerEverywhere, TheSameTokensOnEveryDevice) {
  const auto reference = device_at({.isa = Isa::baseline}, 8);
  const bool cuda = device().is_cuda();
  for (const auto& [vocab, count] : std::vector<std::array<int, 2>>{{1, 40},
                                                                    {2, 40},
                                                                    {7, 300},
                                                                    {33, 100},
                                                                    {1000, cuda ? 1000 : 200},
                                                                    {4097, cuda ? 600 : 40},
                                                                    {49152, cuda ? 200 : 6},
                                                                    {103424, cuda ? 300 : 8},
                                                                    {150001, cuda ? 40 : 3}}) {
    expect_the_same(device(), *reference, vocab, count);
  }
}

// Small enough for tools such as compute-sanitizer, which run kernels a thousand times slower.
TEST_P(SamplerEverywhere, TheSameTokensForFewRows) {
  const auto reference = device_at({.isa = Isa::baseline}, 8);
  for (const auto& [vocab, count] : std::vector<std::array<int, 2>>{{7, 24}, {1000, 24}, {9000, 8}}) {
    expect_the_same(device(), *reference, vocab, count);
  }
}

TEST_P(SamplerEverywhere, TheSameScoresOnEveryDevice) {
  const auto reference = device_at({.isa = Isa::baseline}, 8);
  for (const int vocab : {1, 7, 1003, 103424, 140001}) {
    constexpr int kRows = 20;
    const RandomRows random(vocab, kRows, std::uint32_t(vocab));
    std::vector<ScoreRow> rows;
    for (int i = 0; i < kRows; ++i) {
      rows.push_back({.logits_row = kRows - 1 - i, .token = i * 977 % vocab, .logprobs = i % 21});
    }
    const auto score = [&](DeviceUnderTest& device) {
      const Memory results(device, kRows * sizeof(SampleResult));
      run(device, Score{.results = results.as<SampleResult>(),
                        .rows = device.put(rows),
                        .logits = device.put(random.logits),
                        .count = kRows,
                        .vocab = vocab,
                        .stride = random.stride()});
      return std::vector<SampleResult>(results.host<SampleResult>(), results.host<SampleResult>() + kRows);
    };
    const auto got = score(device()), expected = score(*reference);
    for (std::size_t i = 0; i < kRows; ++i) {
      const SampleResult &a = got[i], &b = expected[i];
      EXPECT_EQ(a.token, b.token);
      ASSERT_EQ(a.error, b.error) << vocab << " " << i;
      ASSERT_EQ(a.top_count, b.top_count);
      if (b.error != SampleError::none) continue;
      const auto near = [](float x, float y) { return std::abs(x - y) <= 1e-5f + 2e-7f * std::abs(y); };
      EXPECT_TRUE(near(a.logprob, b.logprob)) << a.logprob << " " << b.logprob;
      for (int j = 0; j < a.top_count; ++j) {
        EXPECT_EQ(a.top[j].token, b.top[j].token) << vocab << " " << i << " " << j;
        EXPECT_TRUE(near(a.top[j].logprob, b.top[j].logprob)) << a.top[j].logprob << " " << b.top[j].logprob;
      }
    }
  }
}

TEST_P(SamplerEverywhere, PenaltiesCountLongSequences) {
  constexpr int kVocab = 103424, kKnown = 131072, kPrompt = 1000;
  const std::vector<float> logits = random_floats(kVocab, 3, 2);
  std::vector<TokenId> tokens(kKnown);
  std::mt19937 random(5);
  for (TokenId& id : tokens) id = TokenId(random() % 3 == 0 ? random() % kVocab : random() % 40);
  const SampleRow row{.temperature = 0.9f,
                      .top_p = 0.9f,
                      .repetition_penalty = 1.2f,
                      .presence_penalty = -0.5f,
                      .frequency_penalty = -1e-4f,
                      .seed = 4,
                      .tokens = tokens.data(),
                      .prompt_tokens = kPrompt,
                      .known_tokens = kKnown,
                      .logprobs = 0};
  const auto reference = device_at({.isa = Isa::baseline}, 1);
  const auto expected = sampled(*reference, {row}, logits, kVocab, kVocab)[0];
  const SampleResult got = one(logits, row);
  EXPECT_EQ(got.token, expected.token);
  EXPECT_NEAR(got.logprob, expected.logprob, 1e-5);
}

}  // namespace
}  // namespace troupe::kernels
