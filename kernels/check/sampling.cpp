// Checks of sampling, scores and top log-probabilities: the tokens are the CPU's, for every option of a row.
#include "kernels/sample.h"

#include "kernels/check/side.h"
#include "kernels/cuda/sample/choose.h"
#include "kernels/top_logprobs.h"

namespace troupe::kernels::check {
namespace {

/// Tokens must be equal, log-probabilities nearly so.
Status compare_results(const std::vector<SampleResult>& got, const std::vector<SampleResult>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const SampleResult &a = got[i], &b = expected[i];
    bool same = a.token == b.token && a.error == b.error && a.top_count == b.top_count;
    same = same && std::abs(a.logprob - b.logprob) <= 1e-4f * (1 + std::abs(b.logprob));
    for (int k = 0; same && k < b.top_count; ++k)
      same = a.top[k].token == b.top[k].token &&
             std::abs(a.top[k].logprob - b.top[k].logprob) <= 1e-4f * (1 + std::abs(b.top[k].logprob));
    if (!same)
      return failure(Code::internal, "row " + std::to_string(i) + " gives token " + std::to_string(a.token) +
                                         " instead of " + std::to_string(b.token) +
                                         ", or other log-probabilities");
  }
  return {};
}

/// A row of each kind, twice: one logit that is not finite is the last row's.
template <class D>
std::vector<SampleResult> sampled(Side<D>& side, int vocab) {
  const TokenId* const known = side.put(std::vector<TokenId>{1, 5, 5, 9, vocab - 1});
  const TokenId* const banned = side.put(std::vector<TokenId>{0, 3});
  const TokenBias* const bias = side.put(std::vector<TokenBias>{{2, 4.0f}, {vocab - 2, -3.0f}});
  std::vector<std::uint32_t> words(mask_words(vocab));
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i % 3 == 0 ? 0x11010010u : 0u;
  const std::uint32_t* const mask = side.put(words);
  std::vector<SampleRow> rows{
      {.temperature = 0, .logprobs = 5},
      {.temperature = 1},
      {.temperature = 0.7f, .top_p = 0.9f, .logprobs = 20},
      {.temperature = 1.3f, .top_k = 40},
      {.temperature = 1, .min_p = 0.05f, .logprobs = 0},
      {.temperature = 0.9f,
       .repetition_penalty = 1.2f,
       .presence_penalty = 0.5f,
       .frequency_penalty = 0.3f,
       .tokens = known,
       .prompt_tokens = 2,
       .known_tokens = 5},
      {.temperature = 1, .banned = banned, .banned_count = 2, .bias = bias, .bias_count = 2},
      {.temperature = 1, .top_p = 0.95f, .mask = mask},
      {.temperature = 1}};
  const int count = static_cast<int>(rows.size()), stride = padded(vocab);
  Numbers logits = draw(static_cast<std::size_t>(count) * static_cast<std::size_t>(stride), 111, 3);
  logits[static_cast<std::size_t>(count - 1) * static_cast<std::size_t>(stride) + 17] = std::nanf("");
  for (int i = 0; i < count; ++i) {
    rows[static_cast<std::size_t>(i)].logits_row = i;
    rows[static_cast<std::size_t>(i)].seed = 77 + static_cast<std::uint64_t>(i);
    rows[static_cast<std::size_t>(i)].position = static_cast<std::uint32_t>(3 * i);
  }
  SampleResult* const results = side.template room<SampleResult>(rows.size());
  run(side.device(), Sample{.results = results,
                            .rows = side.put(rows),
                            .logits = side.put(logits),
                            .count = count,
                            .vocab = vocab,
                            .stride = stride});
  return side.get(results, rows.size());
}

TakenWay way_of_sample(const cuda::GpuTraits& gpu, int rows, int vocab) {
  const cuda::SampleChoice choice = choose(cuda::SampleShape{rows, vocab}, gpu);
  if (choice.resident) return {"clusters, logits in shared memory", KernelWay::sample_resident};
  return {choice.blocks == 1 ? "a block for each row" : "clusters, logits in memory", {}};
}

void add_sampling(Checks& checks, int vocab) {
  checks.push_back({"Sample",
                    "9 rows of " + std::to_string(vocab),
                    {},
                    [vocab](const cuda::GpuTraits& gpu) { return way_of_sample(gpu, 9, vocab); },
                    [vocab](Cpu& cpu, Cuda& cuda) {
                      Side<Cuda> there(cuda);
                      Side<Cpu> here(cpu);
                      return compare_results(sampled(there, vocab), sampled(here, vocab));
                    }});
}

template <class D>
std::vector<SampleResult> scored(Side<D>& side) {
  constexpr int kVocab = 5003, kRows = 3;
  SampleResult* const results = side.template room<SampleResult>(kRows);
  run(side.device(), Score{.results = results,
                           .rows = side.put(std::vector<ScoreRow>{{2, 7, 0}, {0, kVocab - 1, 20}, {1, 0, 3}}),
                           .logits = side.put(draw(kRows * padded(kVocab), 112, 3)),
                           .count = kRows,
                           .vocab = kVocab,
                           .stride = padded(kVocab)});
  return side.get(results, kRows);
}

void add_top_logprobs(Checks& checks) {
  checks.push_back({"TopLogprobs", "three rows of 5003, up to all", {}, one_kernel, [](Cpu& cpu, Cuda& cuda) {
                      constexpr int kVocab = 5003;
                      const auto top = [&](auto& side) {
                        TopLogprob* const out = side.template room<TopLogprob>(kVocab + 101);
                        run(side.device(),
                            TopLogprobs{.top = out,
                                        .rows = side.put(std::vector<TopRow>{
                                            {0, kVocab, 0}, {2, 100, kVocab}, {1, 1, kVocab + 100}}),
                                        .logits = side.put(draw(3 * padded(kVocab), 113, 3)),
                                        .count = 3,
                                        .vocab = kVocab,
                                        .stride = padded(kVocab)});
                        Numbers tokens, logprobs;
                        for (const TopLogprob& one : side.get(out, kVocab + 101)) {
                          tokens.push_back(static_cast<float>(one.token));
                          logprobs.push_back(one.logprob);
                        }
                        return std::pair{tokens, logprobs};
                      };
                      Side<Cuda> there(cuda);
                      const auto got = top(there);
                      Side<Cpu> here(cpu);
                      const auto expected = top(here);
                      if (Status s = compare(got.first, expected.first, kExact); !s.ok()) return s;
                      return compare(got.second, expected.second, {1e-5, 1e-6});
                    }});
}

}  // namespace

void add_sample_checks(Checks& checks) {
  for (const int vocab : {1000, 103424, 140000}) add_sampling(checks, vocab);
  checks.push_back({"Score",
                    "three rows of 5003",
                    {},
                    [](const cuda::GpuTraits& gpu) { return way_of_sample(gpu, 3, 5003); },
                    [](Cpu& cpu, Cuda& cuda) {
                      Side<Cuda> there(cuda);
                      Side<Cpu> here(cpu);
                      return compare_results(scored(there), scored(here));
                    }});
  add_top_logprobs(checks);
}

}  // namespace troupe::kernels::check
