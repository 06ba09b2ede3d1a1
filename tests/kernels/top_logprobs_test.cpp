// The most likely tokens of a row, up to all of them: against a plain sort, on every device.
#include "kernels/top_logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/batch.h"
#include "kernels/sampler.h"

namespace troupe::kernels {
namespace {

constexpr float kNoLogprob = 7;  // which no token has

class TopLogprobsTest : public Sampler {
 protected:
  /// The entries that the rows get, in the order of `rows`, each with `first` set here.
  std::vector<TopLogprob> top(std::vector<TopRow> rows, const std::vector<float>& logits, int vocab) {
    std::int32_t all = 0;
    for (TopRow& row : rows) {
      row.first = all;
      all += row.count;
    }
    const Memory there(device(), sizeof(TopLogprob) * std::size_t(all));
    const std::vector<TopLogprob> untouched(std::size_t(all), {-1, kNoLogprob});
    device().upload(there.as(), untouched.data(), sizeof(TopLogprob) * untouched.size());
    run(device(), TopLogprobs{.top = there.as<TopLogprob>(),
                              .rows = device().put(rows),
                              .logits = device().put(logits),
                              .count = int(rows.size()),
                              .vocab = vocab,
                              .stride = padded(vocab)});
    return {there.host<TopLogprob>(), there.host<TopLogprob>() + all};
  }
};
INSTANTIATE_TEST_SUITE_P(On, TopLogprobsTest, testing::ValuesIn(everywhere()),
                         [](const auto& info) { return to_string(info.param); });

/// The ids of a row, most likely first.
std::vector<TokenId> sorted_ids(const float* logits, int vocab) {
  std::vector<TokenId> ids(static_cast<std::size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [logits](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  return ids;
}

double log_sum(const float* logits, int vocab) {
  const double most = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int v = 0; v < vocab; ++v) sum += std::exp(logits[v] - most);
  return most + std::log(sum);
}

/// Rows of many shapes: kind 0 … 5.
void fill(float* z, int vocab, int kind, std::mt19937& random) {
  std::normal_distribution<float> normal(0, kind == 5 ? 30.0f : 3.0f);
  for (int v = 0; v < vocab; ++v) {
    const float x = normal(random);
    z[v] = kind == 0   ? 0.25f                             // all equal
           : kind == 1 ? float(random() % 4)               // few values
           : kind == 2 ? bf16_to_float(float_to_bf16(x))   // ties
           : kind == 3 ? (random() % 2 ? 0.0f : -0.0f)     // zeros of both signs are equal
           : kind == 4 ? 1 + 1e-6f * float(random() % 16)  // alike but for the last bits
                       : x;
  }
}

void expect_sorted_tops(const std::vector<TopLogprob>& got, const std::vector<TopRow>& rows,
                        const std::vector<float>& logits, int vocab) {
  std::size_t at = 0;
  for (const TopRow& row : rows) {
    const float* const z = logits.data() + std::size_t(row.logits_row) * std::size_t(padded(vocab));
    const std::vector<TokenId> ids = sorted_ids(z, vocab);
    const double denominator = log_sum(z, vocab);
    for (std::int32_t i = 0; i < row.count; ++i, ++at) {
      const TokenId id = ids[std::size_t(i)];
      ASSERT_EQ(got[at].token, id) << "vocab " << vocab << " count " << row.count << " entry " << i;
      ASSERT_NEAR(got[at].logprob, z[id] - denominator, 2e-5 + 2e-7 * std::abs(z[id] - denominator))
          << vocab << " " << i;
    }
  }
}

TEST_P(TopLogprobsTest, AreThoseOfAPlainSort) {
  for (const int vocab : {1, 2, 33, 1000, 4096, 4097, 49152, 103424, 150001}) {
    const std::size_t stride = std::size_t(padded(vocab));
    std::mt19937 random(static_cast<std::uint32_t>(vocab));
    constexpr int kKinds = 6;
    std::vector<float> logits(kKinds * stride);
    for (int kind = 0; kind < kKinds; ++kind)
      fill(logits.data() + std::size_t(kind) * stride, vocab, kind, random);
    std::vector<TopRow> rows;
    for (int kind = 0; kind < kKinds; ++kind) {
      // Around the number that is sorted in one piece, and all.
      for (const int count : {21, 50, 4095, 4096, 4097, 12289, vocab - 1, vocab}) {
        if (count < 1 || count > vocab || (count > 5000 && kind % 2 == 0 && count < vocab)) continue;
        rows.push_back({.logits_row = kKinds - 1 - kind, .count = count});
      }
    }
    expect_sorted_tops(top(rows, logits, vocab), rows, logits, vocab);
    if (HasFatalFailure()) return;
  }
}

// A step may hold many rows that want a few more than 20.
TEST_P(TopLogprobsTest, ManyRows) {
  constexpr int kVocab = 5000, kRows = 200;
  const std::size_t stride = std::size_t(padded(kVocab));
  std::mt19937 random(3);
  std::vector<float> logits(kRows * stride);
  std::vector<TopRow> rows;
  for (int i = 0; i < kRows; ++i) {
    fill(logits.data() + std::size_t(i) * stride, kVocab, i % 6, random);
    rows.push_back({.logits_row = i, .count = 21 + i});
  }
  expect_sorted_tops(top(rows, logits, kVocab), rows, logits, kVocab);
}

TEST_P(TopLogprobsTest, PaddingAndWhatIsNotFiniteAreLeftAlone) {
  constexpr int kVocab = 300;
  const std::size_t stride = std::size_t(padded(kVocab));
  std::vector<float> logits(4 * stride, 1.5f);
  logits[1 * stride + 7] = std::numeric_limits<float>::quiet_NaN();
  logits[2 * stride + 299] = -std::numeric_limits<float>::infinity();
  const auto got = top({{.logits_row = 1, .count = 40},
                        {.logits_row = -1, .count = 40},
                        {.logits_row = 2, .count = 40},
                        {.logits_row = 3, .count = 40}},
                       logits, kVocab);
  for (std::size_t i = 0; i < 120; ++i) ASSERT_EQ(got[i].logprob, kNoLogprob) << i;
  for (std::size_t i = 0; i < 40; ++i) ASSERT_EQ(got[120 + i].token, TokenId(i));
}

// The answer shows both beside each other.
TEST_P(TopLogprobsTest, AreTheLogprobsOfSampleAndScoreToTheBit) {
  for (const int vocab : {90, 1003, 103424}) {
    std::vector<float> logits = random_floats(std::size_t(padded(vocab)), 11, 4);
    const auto all = top({{.logits_row = 0, .count = vocab}}, logits, vocab);
    const auto few =
        sampled(device(), {{.temperature = 0, .logprobs = kMaxTopLogprobs}}, logits, vocab, padded(vocab))[0];
    ASSERT_EQ(few.top_count, kMaxTopLogprobs);
    EXPECT_EQ(few.token, all[0].token);
    EXPECT_EQ(few.logprob, all[0].logprob);
    for (std::size_t i = 0; i < kMaxTopLogprobs; ++i) {
      ASSERT_EQ(few.top[i].token, all[i].token);
      ASSERT_EQ(few.top[i].logprob, all[i].logprob);
    }
    const TopLogprob& last = all.back();
    const Memory result(device(), sizeof(SampleResult));
    run(device(), Score{.results = result.as<SampleResult>(),
                        .rows = device().put(std::vector<ScoreRow>{{.token = last.token, .logprobs = 50}}),
                        .logits = device().put(logits),
                        .count = 1,
                        .vocab = vocab,
                        .stride = padded(vocab)});
    EXPECT_EQ(result.host<SampleResult>()->logprob, last.logprob);
    EXPECT_EQ(result.host<SampleResult>()->top_count, kMaxTopLogprobs);
  }
}

}  // namespace
}  // namespace troupe::kernels
