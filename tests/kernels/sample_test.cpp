// Sampling: each processor and filter with numbers computed by hand, the distribution of draws compared with
// exact probabilities, log-probabilities, independence of rows, and equal tokens on every instruction set.
#include "kernels/sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>

#include "kernels/cpu/routines.h"
#include "kernels/philox.h"
#include "kernels/sampler.h"
#include "kernels/sampling_weight.h"

namespace troupe::kernels {
namespace {

INSTANTIATE_TEST_SUITE_P(On, Sampler, testing::ValuesIn(everywhere()),
                         [](const auto& info) { return to_string(info.param); });

/// Pearson's statistic has mean `degrees` and variance 2 * degrees. The limit is five standard deviations
/// above the mean.
void expect_distribution(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  const int draws = std::accumulate(counts.begin(), counts.end(), 0);
  double statistic = 0;
  int degrees = -1;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (probabilities[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " was filtered";
      continue;
    }
    const double expected = probabilities[i] * draws;
    statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++degrees;
  }
  EXPECT_LT(statistic, degrees + 5 * std::sqrt(2.0 * degrees) + 5);
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  const double top = *std::max_element(logits.begin(), logits.end());
  for (const float z : logits) p.push_back(std::exp((z - top) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= sum;
  return p;
}

void keep_only(std::vector<double>& p, const std::vector<int>& ids) {
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (std::find(ids.begin(), ids.end(), int(i)) == ids.end()) p[i] = 0;
    sum += p[i];
  }
  for (double& v : p) v /= sum;
}

TEST_P(Sampler, GreedyTakesTheLargestAndTheLowestIdOfEquals) {
  for (const int vocab : {1, 3, 17, 64, 1000, 4097}) {
    std::vector<float> logits = random_floats(std::size_t(vocab), 1);
    const int best = vocab * 2 / 3;
    logits[std::size_t(best)] = 9;
    logits.back() = 9;
    EXPECT_EQ(one(logits, {.temperature = 0}).token, best);
    EXPECT_EQ(one(logits, {.temperature = 5, .top_k = 1}).token, best);
  }
}

TEST_P(Sampler, PlainTemperature) {
  const auto logits = random_floats(50, 2, 2);
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    expect_distribution(histogram(logits, {.temperature = temperature, .seed = 7}, 30000),
                        softmax(logits, temperature));
  }
}

TEST_P(Sampler, ALargeVocabulary) {
  std::vector<float> logits(40000, 0.0f);  // all tokens are equally likely; counted in forty bins
  const auto counts = histogram(logits, {.seed = 11}, 4000);
  std::vector<int> bins(40);
  for (std::size_t i = 0; i < counts.size(); ++i) bins[i / 1000] += counts[i];
  expect_distribution(bins, std::vector<double>(40, 1.0 / 40));
}

TEST_P(Sampler, TopK) {
  const std::vector<float> logits{1, 3, 2, 3, 0.5f, 2};
  auto p = softmax(logits, 1);
  keep_only(p, {1, 3, 2});  // of the two equal thirds the lower id stays
  expect_distribution(histogram(logits, {.top_k = 3, .seed = 3}, 20000), p);
}

TEST_P(Sampler, TopP) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.2f), std::log(0.1f), std::log(0.2f)};
  auto p = softmax(logits, 1);
  keep_only(p, {0, 1});  // 0.5 + 0.2 reaches 0.65; the equal token 3 is not needed
  expect_distribution(histogram(logits, {.top_p = 0.65f, .seed = 4}, 20000), p);
  p = softmax(logits, 1);
  keep_only(p, {0, 1, 3});
  expect_distribution(histogram(logits, {.top_p = 0.75f, .seed = 5}, 20000), p);
  EXPECT_EQ(histogram(logits, {.top_p = 1e-6f, .seed = 6}, 500)[0], 500) << "at least one token stays";
}

TEST_P(Sampler, MinP) {
  const std::vector<float> logits{std::log(0.4f), std::log(0.3f), std::log(0.15f), std::log(0.15f)};
  auto p = softmax(logits, 1);
  keep_only(p, {0, 1});
  expect_distribution(histogram(logits, {.min_p = 0.5f, .seed = 8}, 20000), p);
}

TEST_P(Sampler, FiltersChain) {
  // min_p leaves tokens 0-3, top_k leaves 0-2, and top_p applies to the sum of those three: 0.4 + 0.3 of
  // 0.85.
  const std::vector<float> logits{std::log(0.4f), std::log(0.3f), std::log(0.15f), std::log(0.1f),
                                  std::log(0.05f)};
  auto p = softmax(logits, 1);
  keep_only(p, {0, 1});
  expect_distribution(histogram(logits, {.top_p = 0.8f, .min_p = 0.2f, .top_k = 3, .seed = 9}, 20000), p);
}

TEST_P(Sampler, FiltersOfManyTokensMatchASort) {
  const auto logits = random_floats(5000, 12, 3);
  for (const auto& [top_k, top_p] : std::vector<std::pair<int, float>>{{40, 1.0f}, {0, 0.9f}, {1000, 0.5f}}) {
    const auto p = softmax(logits, 1);
    std::vector<int> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return p[std::size_t(a)] > p[std::size_t(b)]; });
    if (top_k > 0) order.resize(std::size_t(top_k));
    double all = 0, sum = 0;
    for (const int id : order) all += p[std::size_t(id)];
    std::size_t kept = 0;
    while (kept < order.size() && sum < double(top_p) * all - 1e-9) sum += p[std::size_t(order[kept++])];
    order.resize(top_p < 1 ? kept : order.size());
    const auto counts = histogram(logits, {.top_p = top_p, .top_k = top_k, .seed = 13}, 3000);
    std::vector<int> seen(counts.size());
    for (const int id : order) seen[std::size_t(id)] = 1;
    int outside = 0, inside = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) (seen[i] != 0 ? inside : outside) += counts[i];
    EXPECT_EQ(outside, 0) << top_k << " " << top_p;
    EXPECT_EQ(inside, 3000);
    EXPECT_GT(counts[std::size_t(order[0])], 0);
  }
}

TEST_P(Sampler, Penalties) {
  const TokenId tokens[] = {0, 1, 1, 2, 2, 2};  // prompt 0 1, output 1 2 2 2
  SampleRow row{.temperature = 0, .tokens = tokens, .prompt_tokens = 2, .known_tokens = 6, .logprobs = 0};
  // Repetition: 4 / 2 = 2 for token 0, so token 3 wins; a negative logit is multiplied.
  row.repetition_penalty = 2;
  EXPECT_EQ(one({4, 3, 2, 2.5f, -9}, row).token, 3);
  EXPECT_EQ(one({-1, -5, -5, -1.5f, -9}, row).token, 3);
  EXPECT_EQ(one({-1, -5, -5, -2.5f, -9}, row).token, 0);
  // Frequency counts output only: token 1 once, token 2 three times.
  row.repetition_penalty = 1;
  row.frequency_penalty = 0.5f;
  EXPECT_EQ(one({0, 1, 1.9f, 0.45f, -9}, row).token, 1);
  EXPECT_EQ(one({0, 1, 2.1f, 0.45f, -9}, row).token, 2);
  EXPECT_EQ(one({5, 1, 2.1f, 0.45f, -9}, row).token, 0) << "the prompt is not counted";
  // The presence penalty is subtracted once, whatever the count.
  row.frequency_penalty = 0;
  row.presence_penalty = 1;
  EXPECT_EQ(one({0, 1, 2, 0.9f, -9}, row).token, 2);
  EXPECT_EQ(one({0, 1, 2, 1.1f, -9}, row).token, 3);
}

TEST_P(Sampler, BiasAndBan) {
  const TokenBias bias[] = {{2, 5.0f}, {0, -100.0f}};
  SampleRow row{.temperature = 0, .bias = bias, .bias_count = 2};
  EXPECT_EQ(one({4, 3, 0, 1}, row).token, 2);
  const TokenId banned[] = {2, 1};
  row.banned = banned;
  row.banned_count = 2;
  EXPECT_EQ(one({4, 3, 0, 1}, row).token, 3);
  row.temperature = 1;
  row.bias_count = 0;
  const auto counts = histogram({1, 9, 9, 1}, row, 2000);
  EXPECT_EQ(counts[1] + counts[2], 0);
  EXPECT_GT(counts[0], 0);
  EXPECT_GT(counts[3], 0);
}

TEST_P(Sampler, AMaskedTokenIsNeverTheResult) {
  for (const int vocab : {5, 33, 64, 101, 5000}) {
    auto logits = random_floats(std::size_t(vocab), 17);
    logits[3] = 30;
    logits[2] = 20;
    logits[4] = 20;
    const auto mask = mask_of(vocab, {1, 2, 4, vocab - 1});
    SampleRow row{.temperature = 0, .mask = mask.data()};
    EXPECT_EQ(one(logits, row).token, 2) << "the largest that is allowed, the lowest id of equals";
    row.temperature = 1;
    const auto counts = histogram(logits, row, 2000);
    EXPECT_EQ(counts[2] + counts[4], 2000) << vocab;
    EXPECT_GT(counts[2], 800);
    EXPECT_GT(counts[4], 800);
    const auto single = mask_of(vocab, {vocab - 1});
    row.mask = single.data();
    EXPECT_EQ(histogram(logits, row, 100)[std::size_t(vocab - 1)], 100);
    row.temperature = 0;
    EXPECT_EQ(one(logits, row).token, vocab - 1);
  }
}

TEST_P(Sampler, FiltersActOnWhatTheMaskLeaves) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.1f), std::log(0.25f), std::log(0.05f),
                                  std::log(0.1f)};
  const auto mask = mask_of(5, {1, 2, 3, 4});
  auto p = softmax(logits, 1);
  keep_only(p, {2, 1});
  expect_distribution(histogram(logits, {.top_k = 2, .seed = 3, .mask = mask.data()}, 20000), p);
  p = softmax(logits, 1);
  keep_only(p, {2, 1});  // 0.25 + 0.1 of 0.5 reach 0.6
  expect_distribution(histogram(logits, {.top_p = 0.6f, .seed = 4, .mask = mask.data()}, 20000), p);
  p = softmax(logits, 1);
  keep_only(p, {2, 1, 4});  // of the largest that is left
  expect_distribution(histogram(logits, {.min_p = 0.3f, .seed = 5, .mask = mask.data()}, 20000), p);
}

TEST_P(Sampler, OneOfTheAllowedIsChosenWhateverTheOthersForbid) {
  const std::vector<float> logits{9, 1, 2, 3, -4};
  const auto mask = mask_of(5, {1, 2});
  const TokenId banned[] = {1, 2};
  SampleRow row{.temperature = 0, .banned = banned, .banned_count = 2, .mask = mask.data()};
  EXPECT_EQ(one(logits, row).token, 1) << "both are equally banned";
  row.temperature = 0.7f;
  auto counts = histogram(logits, row, 500);
  EXPECT_EQ(counts[1] + counts[2], 500);
  const TokenBias bias[] = {{1, -3e38f}, {2, -3e38f}, {0, 50.0f}};
  row = {.temperature = 1, .top_p = 0.5f, .bias = bias, .bias_count = 3, .mask = mask.data()};
  counts = histogram(logits, row, 500);
  EXPECT_EQ(counts[1] + counts[2], 500);
  const TokenId seen[] = {1, 1, 1, 2, 2};
  row = {.temperature = 0.5f,
         .min_p = 0.9f,
         .repetition_penalty = 100,
         .presence_penalty = 2,
         .frequency_penalty = 2,
         .tokens = seen,
         .known_tokens = 5,
         .mask = mask.data()};
  counts = histogram(logits, row, 500);
  EXPECT_EQ(counts[1] + counts[2], 500);
}

TEST_P(Sampler, LogprobsOfMaskedRowsAreRaw) {
  const std::vector<float> logits{1, 3, 2, 3, 0.5f};
  const auto p = softmax(logits, 1);
  const auto mask = mask_of(5, {4});
  const SampleResult r = one(logits, {.temperature = 0.3f, .mask = mask.data(), .logprobs = 2});
  EXPECT_EQ(r.token, 4);
  EXPECT_NEAR(r.logprob, std::log(p[4]), 1e-5);
  ASSERT_EQ(r.top_count, 2);
  EXPECT_EQ(r.top[0].token, 1) << "though it may not be sampled";
  EXPECT_NEAR(r.top[0].logprob, std::log(p[1]), 1e-5);
}

TEST_P(Sampler, AMaskDoesNotHideLogitsThatAreNotFinite) {
  std::vector<float> logits{1, 3, std::nanf(""), 3};
  const auto mask = mask_of(4, {1});
  EXPECT_EQ(one(logits, {.temperature = 0, .mask = mask.data()}).error, SampleError::not_finite);
}

TEST_P(Sampler, LogprobsAreRawWhateverTheProcessorsDo) {
  const std::vector<float> logits{1, 3, 2, 3, 0.5f};
  const auto p = softmax(logits, 1);
  const TokenBias bias[] = {{4, 50.0f}};
  const TokenId tokens[] = {1, 4};
  const SampleResult r = one(logits, {.temperature = 0.1f,
                                      .repetition_penalty = 1.5f,
                                      .tokens = tokens,
                                      .prompt_tokens = 1,
                                      .known_tokens = 2,
                                      .bias = bias,
                                      .bias_count = 1,
                                      .logprobs = 3});
  EXPECT_EQ(r.token, 4);
  EXPECT_NEAR(r.logprob, std::log(p[4]), 1e-5);
  ASSERT_EQ(r.top_count, 3);
  EXPECT_EQ(r.top[0].token, 1);
  EXPECT_EQ(r.top[1].token, 3);
  EXPECT_EQ(r.top[2].token, 2);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(r.top[i].logprob, std::log(p[std::size_t(r.top[i].token)]), 1e-5);
  EXPECT_EQ(one(logits, {.logprobs = 20}).top_count, 5) << "at most the size of the vocabulary";
}

TEST_P(Sampler, ScoresKnownTokens) {
  constexpr int kVocab = 3001;
  const auto logits = random_floats(2 * kVocab, 21, 4);
  std::vector<ScoreRow> rows{{.logits_row = 1, .token = 17, .logprobs = 20},
                             {.logits_row = 0, .token = 3000}};
  const Memory there(device(), 2 * sizeof(SampleResult));
  run(device(), Score{.results = there.as<SampleResult>(),
                      .rows = device().put(rows),
                      .logits = device().put(logits),
                      .count = 2,
                      .vocab = kVocab,
                      .stride = kVocab});
  const auto* results = there.host<SampleResult>();
  for (std::size_t i = 0; i < 2; ++i) {
    const auto* row = logits.data() + rows[i].logits_row * kVocab;
    const auto p = softmax({row, row + kVocab}, 1);
    EXPECT_EQ(results[i].token, rows[i].token);
    EXPECT_NEAR(results[i].logprob, std::log(p[std::size_t(rows[i].token)]), 2e-5);
    EXPECT_EQ(results[i].top_count, rows[i].logprobs);
    std::vector<int> order(kVocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    for (int j = 0; j < results[i].top_count; ++j) {
      EXPECT_EQ(results[i].top[j].token, order[std::size_t(j)]);
      EXPECT_NEAR(results[i].top[j].logprob, std::log(p[std::size_t(order[std::size_t(j)])]), 2e-5);
    }
  }
}

TEST_P(Sampler, NonFiniteLogitsFailOnlyTheirRow) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr int kVocab = 37;
  for (const float bad : {kInf, -kInf, std::nanf("")}) {
    for (const int where : {0, 15, 36}) {
      std::vector<float> logits(3 * kVocab, 0.0f);
      logits[std::size_t(kVocab + where)] = bad;
      logits[std::size_t(2 * kVocab + 5)] = 1;
      std::vector<SampleRow> rows{{.logits_row = 1, .temperature = 0, .logprobs = 2},
                                  {.logits_row = 2, .temperature = 0, .logprobs = 2}};
      const auto results = sampled(device(), rows, logits, kVocab, kVocab);
      EXPECT_EQ(results[0].error, SampleError::not_finite);
      EXPECT_EQ(results[1].error, SampleError::none);
      EXPECT_EQ(results[1].token, 5);
    }
  }
}

TEST_P(Sampler, ARowsResultDoesNotDependOnOtherRows) {
  constexpr int kVocab = 20777;
  const auto logits = random_floats(kVocab, 31, 2);
  const SampleRow row{
      .temperature = 0.8f, .top_p = 0.95f, .seed = 99, .choice = 2, .position = 41, .logprobs = 7};
  const SampleResult alone = one(logits, row);
  for (const int count : {2, 9, 40}) {
    std::vector<float> copies;
    std::vector<SampleRow> rows;
    for (int i = 0; i < count; ++i) {
      copies.insert(copies.end(), logits.begin(), logits.end());
      rows.push_back(row);
      rows.back().logits_row = i;
      rows.back().seed = i == count - 1 ? 99 : std::uint64_t(i);
    }
    const SampleResult among = sampled(device(), rows, copies, kVocab, kVocab).back();
    EXPECT_EQ(among.token, alone.token) << count;
    EXPECT_EQ(among.logprob, alone.logprob) << count;
    for (int i = 0; i < 7; ++i) {
      EXPECT_EQ(among.top[i].token, alone.top[i].token);
      EXPECT_EQ(among.top[i].logprob, alone.top[i].logprob);
    }
  }
}

TEST_P(Sampler, SeedChoiceAndPositionEachMatter) {
  const std::vector<float> logits(1000, 0.0f);
  const SampleRow row{.seed = 5, .choice = 1, .position = 10};
  SampleRow seed = row, choice = row, position = row;
  seed.seed = 5 + (std::uint64_t{1} << 32);
  choice.choice = 2;
  position.position = 11;
  const TokenId token = one(logits, row).token;
  EXPECT_EQ(one(logits, row).token, token);
  EXPECT_NE(one(logits, seed).token, token);
  EXPECT_NE(one(logits, choice).token, token);
  EXPECT_NE(one(logits, position).token, token);
}

TEST_P(Sampler, PaddingRowsAreNotWrittenAndTheTokenGoesToNext) {
  const std::vector<float> logits{0, 5, 1, std::nanf(""), 0, 1};
  std::vector<TokenId> next;
  const auto results = sampled(
      device(),
      {{.logits_row = -1}, {.logits_row = 0, .temperature = 0}, {.logits_row = 1}, {.logits_row = -1}},
      logits, 3, 3, &next);
  EXPECT_EQ(results[0].token, -7);
  EXPECT_EQ(results[1].token, 1);
  EXPECT_EQ(results[2].error, SampleError::not_finite);
  EXPECT_EQ(results[3].token, -7);
  EXPECT_EQ(next, (std::vector<TokenId>{-7, 1, 0, -7}));
}

TEST(SamplingWeight, IsTheExponentialAndTheSameOnEveryInstructionSet) {
  std::vector<float> logits{0, -0.0f, -1e-8f, -1e38f, std::numeric_limits<float>::lowest()};
  for (int i = 0; i < 100000; ++i) logits.push_back(-1e-3f * float(i % 25000) - 1e-9f * float(i));
  for (const float temperature : {1e-45f, 1e-3f, 0.7f, 1.0f, 1.9f}) {
    const float scale = sampling_scale(temperature);
    std::vector<std::uint32_t> expected(logits.size()), weights(logits.size());
    const auto weigh = [&](Isa isa, std::vector<std::uint32_t>& to) {
      routines(isa).weigh(to.data(), logits.data(), int(logits.size()), 0, scale);
    };
    weigh(Isa::baseline, expected);
    EXPECT_EQ(expected[0], kFullWeight);
    EXPECT_EQ(expected[1], kFullWeight);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double exact = std::exp2(double(logits[i]) * double(scale)) * kFullWeight;
      // t is rounded to a float, and so is the weight.
      const double power = std::abs(double(logits[i]) * double(scale));
      ASSERT_NEAR(expected[i], exact, 0.5 + exact * 0x1p-24 * (4 + power)) << logits[i] << " " << temperature;
    }
    for (const Isa isa : usable_isas()) {
      weigh(isa, weights);
      EXPECT_EQ(weights, expected) << to_string(isa);
    }
  }
}

TEST(Philox, KnownAnswers) {  // the vectors published with Random123
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Philox{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Philox{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Philox{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace troupe::kernels
