// A sequence's tokens depend on its own prompt and parameters and on nothing else: not on how its prompt is
// cut, who runs beside it, which blocks it got, or whether it was thrown out and computed anew in between.
//
// One body for all devices. On a GPU this is promised with --batch-invariant; without it only the
// reference's tokens are asked for, whose logits are far enough apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "gpu/cuda.h"
#include "model/checkpoint/model_files.h"
#include "model/cpu_executor.h"
#include "model/cuda/executor.h"
#include "model/support/engine.h"
#include "model/support/files.h"
#include "support/patience.h"

namespace troupe::model {
namespace {

using test::Answer;
using test::Ask;
using test::Engine;
using test::golden_directory;

constexpr int kBlocks = 64;

wire::Capacity capacity(const ModelSpec& spec, int max_logprobs) {
  wire::Capacity made;
  made.kv_blocks = kBlocks;
  made.max_slots = 8;
  made.max_tokens_per_step = 256;
  made.max_model_len = 512;
  made.vocab_size = spec.vocab;
  made.max_logprobs = max_logprobs < 0 ? spec.vocab : max_logprobs;
  return made;
}

std::vector<BlockId> block_range(int first, int count, int step = 1) {
  std::vector<BlockId> blocks(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) blocks[static_cast<std::size_t>(i)] = first + i * step;
  return blocks;
}

std::vector<TokenId> golden_ids(const std::string& golden, const char* name) {
  const auto file = Checkpoint::open_file(golden_directory(golden) / "golden.safetensors");
  const auto bytes = read_tensor(*file->find(name));
  std::vector<TokenId> ids(bytes->size() / sizeof(TokenId));
  std::memcpy(ids.data(), bytes->data(), bytes->size());
  return ids;
}

enum class On { cpu, gpu, gpu_invariant };

class ExecutorTest : public ::testing::TestWithParam<std::tuple<const char*, On>> {
 protected:
  const char* golden() const { return std::get<0>(GetParam()); }
  On on() const { return std::get<1>(GetParam()); }

  void SetUp() override {
    if (on() != On::cpu) {
      if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    }
    const config::ModelOptions model{.directory = golden_directory(golden()).string(), .dtype = dtype};
    auto files = open_model(model);
    ASSERT_TRUE(files.ok()) << files.status().message;
    auto made = on() == On::cpu
                    ? make_cpu_executor(*files, options(model), capacity(files->spec, max_logprobs))
                    : make_cuda_executor(*files, options(model));
    ASSERT_TRUE(made.ok()) << made.status().message;
    executor = std::move(*made);
    prompt = golden_ids(golden(), "ids");
    greedy = golden_ids(golden(), "greedy");
  }

  config::Options options(const config::ModelOptions& model) const {
    config::Options options;
    options.model = model;
    options.device.cpu_threads = 2;
    options.device.cpu_isa = isa;
    options.device.num_gpu_blocks_override = kBlocks;
    options.device.batch_invariant = on() == On::gpu_invariant;
    options.scheduler.max_num_seqs = 8;
    options.scheduler.max_num_batched_tokens = 256;
    options.scheduler.max_model_len = 512;
    options.limits.max_logprobs = max_logprobs;
    return options;
  }

  Ask ask(const wire::Sampling& sampling) const {
    return {.prompt = prompt,
            .outputs = static_cast<int>(greedy.size()),
            .sampling = sampling,
            .blocks = block_range(0, 4),
            .second = block_range(50, 4)};
  }

  Answer alone(const Ask& one) {
    executor->reset(1);
    return Engine(*executor).run({one})[0];
  }

  // Everything that must not matter, against the plain run.
  void expect_isolated(const wire::Sampling& sampling) {
    if (on() == On::gpu) GTEST_SKIP() << "not promised without batch-invariant";
    const std::vector<TokenId> expected = alone(ask(sampling)).tokens;
    ASSERT_EQ(expected.size(), greedy.size());
    for (const int chunk : {1, 7, 63, 64, 65, 100}) {
      Ask cut = ask(sampling);
      cut.chunk = chunk;
      EXPECT_EQ(alone(cut).tokens, expected) << "chunks of " << chunk;
    }
    Ask moved = ask(sampling);
    moved.blocks = {63, 1, 40, 7};
    EXPECT_EQ(alone(moved).tokens, expected) << "other blocks";
    for (const int after : {0, 1, 20, 47}) {
      Ask again = ask(sampling);
      again.recompute_after = after;
      again.chunk = 50;
      EXPECT_EQ(alone(again).tokens, expected) << "computed anew after " << after;
    }
    executor->reset(1);
    const std::vector<Answer> together = Engine(*executor).run(crowd(sampling));
    EXPECT_EQ(together[2].tokens, expected) << "in a crowd";
    EXPECT_EQ(together[5].tokens, expected) << "its twin, later and in small pieces";
  }

  // Others around the one: short and long, greedy and random, coming and going.
  std::vector<Ask> crowd(const wire::Sampling& sampling) const {
    std::vector<Ask> asks;
    for (int i = 0; i < 7; ++i) {
      Ask other = ask(i % 2 == 0 ? wire::Sampling{.temperature = 0}
                                 : wire::Sampling{.temperature = 2, .seed = 9u + static_cast<unsigned>(i)});
      other.prompt.resize(static_cast<std::size_t>(3 + 20 * i));
      std::rotate(other.prompt.begin(), other.prompt.begin() + 1, other.prompt.end());
      other.outputs = 5 + 9 * i;
      other.chunk = 10 + 17 * i;
      other.starts_at = 1 + 3 * (i % 4);
      other.blocks = block_range(i, 4, 9);
      if (i == 4) other.recompute_after = 11, other.second = block_range(60, 4);
      asks.push_back(other);
    }
    for (const int i : {2, 5}) {
      const std::vector<BlockId> blocks = asks[static_cast<std::size_t>(i)].blocks;
      asks[static_cast<std::size_t>(i)] = ask(sampling);
      asks[static_cast<std::size_t>(i)].blocks = blocks;
    }
    asks[5].chunk = 11;
    asks[5].starts_at = 9;
    return asks;
  }

  int max_logprobs = 20;  // of the server; -1: the vocabulary
  config::DTypeOption dtype = config::DTypeOption::automatic;
  config::CpuIsa isa = config::CpuIsa::automatic;
  std::unique_ptr<Executor> executor;
  std::vector<TokenId> prompt, greedy;
};

TEST_P(ExecutorTest, GreedyTokensAreThoseOfTheReference) {
  EXPECT_EQ(alone(ask({.temperature = 0})).tokens, greedy);
}

TEST_P(ExecutorTest, GreedyTokensDependOnTheSequenceAlone) { expect_isolated({.temperature = 0}); }

TEST_P(ExecutorTest, SeededTokensDependOnTheSequenceAlone) {
  expect_isolated({.temperature = 1, .top_p = 0.95f, .top_k = 40, .seed = 1234});
}

TEST_P(ExecutorTest, PenaltiesDependOnTheSequenceAlone) {
  expect_isolated({.temperature = 0.8f,
                   .repetition_penalty = 1.3f,
                   .presence_penalty = 0.5f,
                   .frequency_penalty = 0.7f,
                   .seed = 5,
                   .choice = 2});
}

TEST_P(ExecutorTest, GatedRowsSampleWhatTheirMasksAllow) {
  const auto even = [](TokenId token) { return token % 2 == 0; };
  Ask one = ask({.temperature = 1, .top_p = 0.9f, .repetition_penalty = 1.2f, .seed = 3, .logprobs = 2});
  one.gated_from = 3;
  one.allows = even;
  const Answer expected = alone(one);
  ASSERT_EQ(expected.tokens.size(), greedy.size());
  const auto odd = [](TokenId token) { return token % 2 != 0; };
  EXPECT_EQ(std::count_if(expected.tokens.begin() + 3, expected.tokens.end(), odd), 0);
  Ask free = one;
  free.gated_from = -1;
  const std::vector<TokenId> unconstrained = alone(free).tokens;
  EXPECT_GT(std::count_if(unconstrained.begin(), unconstrained.end(), odd), 5) << "the masks decide";
  EXPECT_TRUE(std::equal(unconstrained.begin(), unconstrained.begin() + 3, expected.tokens.begin()));
  one.allows = [](TokenId) { return true; };
  EXPECT_EQ(alone(one).tokens, unconstrained) << "a mask that allows everything changes nothing";

  if (on() == On::gpu) return;  // not promised without batch-invariant
  one.allows = even;
  one.chunk = 50;
  one.recompute_after = 20;
  EXPECT_EQ(alone(one).tokens, expected.tokens) << "computed anew in between";
  // Free and gated sequences in the same steps.
  std::vector<Ask> asks = crowd({.temperature = 0});
  const std::vector<BlockId> blocks = asks[2].blocks;
  asks[2] = one;
  asks[2].blocks = blocks;
  asks[2].second = block_range(56, 4);
  asks[4].gated_from = 0;
  asks[4].allows = odd;
  executor->reset(1);
  const std::vector<Answer> together = Engine(*executor).run(asks);
  EXPECT_EQ(together[2].tokens, expected.tokens) << "in a crowd";
  EXPECT_EQ(std::count_if(together[4].tokens.begin(), together[4].tokens.end(), even), 0);
  EXPECT_EQ(together[5].tokens, alone(ask({.temperature = 0})).tokens) << "one beside them that is free";
}

TEST_P(ExecutorTest, ARowThatSamplesAgainGivesTheSameTokens) {
  Ask one = ask({.temperature = 1, .repetition_penalty = 1.2f, .frequency_penalty = 0.4f, .seed = 3});
  const std::vector<TokenId> expected = alone(one).tokens;
  one.again_after = 8;
  EXPECT_EQ(alone(one).tokens, expected);
}

TEST_P(ExecutorTest, SeedAndChoiceMakeDifferentTexts) {
  const wire::Sampling base{.temperature = 2, .seed = 1};
  wire::Sampling other_seed = base, other_choice = base;
  other_seed.seed = 2;
  other_choice.choice = 1;
  const auto tokens = alone(ask(base)).tokens;
  EXPECT_NE(alone(ask(other_seed)).tokens, tokens);
  EXPECT_NE(alone(ask(other_choice)).tokens, tokens);
}

TEST_P(ExecutorTest, StopIdsWaitForMinTokens) {
  Ask one = ask({.temperature = 0, .min_tokens = 5});
  one.stop_ids = {greedy[0], greedy[1], greedy[2]};
  const auto tokens = alone(one).tokens;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(std::count(one.stop_ids.begin(), one.stop_ids.end(), tokens[static_cast<std::size_t>(i)]), 0);
  }
}

TEST_P(ExecutorTest, BiasDecides) {
  Ask one = ask({.temperature = 0});
  one.bias = {{17, 1000.0f}};
  EXPECT_EQ(alone(one).tokens, std::vector<TokenId>(greedy.size(), 17));
}

TEST_P(ExecutorTest, LogprobsOfOutputAndPromptAreThoseOfTheLogits) {
  Ask one = ask({.temperature = 0, .logprobs = 3, .prompt_logprobs = 2});
  one.outputs = 4;
  const Answer whole = alone(one);
  one.chunk = 13;
  const Answer cut = alone(one);
  ASSERT_EQ(whole.prompt_logprobs.size(), prompt.size() - 1);  // the first token has no predecessor
  ASSERT_EQ(whole.logprobs.size(), 4u);
  if (on() != On::gpu) {
    EXPECT_EQ(whole.logprobs, cut.logprobs);
  }

  const auto file = Checkpoint::open_file(golden_directory(golden()) / "golden.safetensors");
  const FileTensor* tensor = file->find("logits");
  const auto vocab = static_cast<std::size_t>(tensor->shape[1]);
  std::vector<float> logits(tensor->bytes / 4);
  std::memcpy(logits.data(), read_tensor(*tensor)->data(), tensor->bytes);
  for (std::size_t position = 1; position <= prompt.size(); ++position) {
    const float* row = logits.data() + (position - 1) * vocab;
    const float most = *std::max_element(row, row + vocab);
    double sum = 0;
    for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]) - most);
    const auto at = static_cast<int>(position);
    const bool output = position == prompt.size();
    const TokenId token = output ? greedy[0] : prompt[position];
    const double expected = row[token] - most - std::log(sum);
    const double got = output ? whole.logprobs[0] : whole.prompt_logprobs.at(at).logprob;
    ASSERT_NEAR(got, expected, 0.15) << position;
    const auto& top = whole.top.at(at);
    ASSERT_EQ(top.size(), output ? 3u : 2u);
    ASSERT_GE(top[0].logprob, top[1].logprob);
    ASSERT_NEAR(top[0].logprob, -std::log(sum), 0.15);
    EXPECT_NEAR(cut.top.at(at)[0].logprob, top[0].logprob, on() == On::gpu ? 0.02 : 0);
  }
}

// With --max-logprobs -1 rows may ask for more than a SampleResult holds.
class WholeVocabularyTest : public ExecutorTest {
 protected:
  WholeVocabularyTest() { max_logprobs = -1; }

  // Every token once, most likely first, and the first ones those of `few`.
  void expect_whole(const std::vector<wire::Logprob>& whole, const std::vector<wire::Logprob>& few) const {
    ASSERT_EQ(whole.size(), static_cast<std::size_t>(executor->capacity().vocab_size));
    ASSERT_EQ(few.size(), 20u);
    for (std::size_t i = 0; i < few.size(); ++i) {
      ASSERT_EQ(whole[i].token, few[i].token) << i;
      ASSERT_EQ(whole[i].logprob, few[i].logprob) << i;
    }
    std::vector<char> seen(whole.size());
    double sum = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      sum += std::exp(static_cast<double>(whole[i].logprob));
      ASSERT_EQ(seen[static_cast<std::size_t>(whole[i].token)]++, 0) << i;
      if (i == 0) continue;
      ASSERT_GE(whole[i - 1].logprob, whole[i].logprob) << i;
    }
    ASSERT_NEAR(sum, 1, 1e-4);
  }
};

TEST_P(WholeVocabularyTest, RowsWithManyLogprobsRunBesideOthers) {
  const int vocab = executor->capacity().vocab_size;
  ASSERT_EQ(executor->capacity().max_logprobs, vocab);
  Ask few = ask({.temperature = 0, .logprobs = 20, .prompt_logprobs = 20});
  Ask whole = ask({.temperature = 0, .logprobs = vocab, .prompt_logprobs = vocab});
  few.outputs = whole.outputs = 12;
  const Answer expected = alone(few), got = alone(whole);
  EXPECT_EQ(got.tokens, expected.tokens);
  ASSERT_EQ(got.top.size(), prompt.size() + 11);
  if (on() == On::gpu) {  // steps with and without graphs differ in their rounding
    for (const auto& [position, top] : got.top) ASSERT_EQ(top.size(), static_cast<std::size_t>(vocab));
  } else {
    EXPECT_EQ(got.logprobs, expected.logprobs);
    for (const auto& [position, top] : got.top) {
      SCOPED_TRACE(position);
      expect_whole(top, expected.top.at(position));
      if (HasFatalFailure()) return;
    }
  }

  // In one step: rows of prompts and of outputs, with 0, 20, 21 and all, cut, gated, computed anew.
  std::vector<Ask> asks = crowd({.temperature = 0, .logprobs = vocab, .prompt_logprobs = 21});
  asks[0].sampling.logprobs = 20;
  asks[1].sampling.logprobs = 50;
  asks[3].sampling.prompt_logprobs = vocab;
  asks[4].sampling.logprobs = 21;
  asks[5].gated_from = 2;
  asks[5].allows = [](TokenId token) { return token % 2 == 0; };
  executor->reset(1);
  const std::vector<Answer> together = Engine(*executor).run(asks);
  const auto sizes = [&](std::size_t i, bool of_prompt) {
    std::vector<std::size_t> all;
    for (const auto& [position, top] : together[i].top) {
      if ((position < static_cast<int>(asks[i].prompt.size())) == of_prompt) all.push_back(top.size());
    }
    EXPECT_FALSE(all.empty());
    return all;
  };
  const auto every = [&](std::size_t i, bool of_prompt, int size) {
    for (const std::size_t one : sizes(i, of_prompt)) ASSERT_EQ(one, static_cast<std::size_t>(size)) << i;
  };
  every(0, false, 20);
  every(1, false, 50);
  every(2, false, vocab);
  every(2, true, 21);
  every(3, true, vocab);
  every(4, false, 21);
  every(5, false, vocab);
  if (on() == On::gpu) return;
  EXPECT_TRUE(std::equal(expected.tokens.begin(), expected.tokens.end(), together[2].tokens.begin()));
  for (const std::size_t i : {2u, 5u}) {
    for (const auto& [position, top] : together[i].top) {
      if (position > static_cast<int>(prompt.size()) + 1) break;  // from there the masks decide
      const auto& alike = expected.top.at(position);
      for (std::size_t k = 0; k < alike.size(); ++k) ASSERT_EQ(top[k].token, alike[k].token) << i;
    }
  }
}

TEST_P(ExecutorTest, AForkedBlockIsACopy) {
  executor->reset(1);
  test::Plans plans;
  test::Commands commands;
  std::vector<std::byte> out;
  const auto poll = [&] {
    const auto got = executor->poll(out, Clock::now() + troupe::test::kPatience);
    ASSERT_TRUE(got.ok() && *got);
  };
  const int length = static_cast<int>(prompt.size());
  const SlotRef parent{0, 1}, child{1, 1};
  const wire::Sampling sampling{.temperature = 0};
  plans.start(parent, length, length, sampling).ids(parent, 0, prompt).blocks(parent, 0, {0, 1, 2});
  ASSERT_TRUE(executor->submit(plans.row(parent, 0, length, true).plan()).ok());
  poll();
  // The child shares two full blocks and has its own copy of the third; it runs its last prompt token again.
  plans.start(child, length, length, sampling).ids(child, 0, prompt).blocks(child, 0, {0, 1, 9});
  plans.row(child, length - 1, 1, true).row(parent, length, 1, true).after(1);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  EXPECT_FALSE(*executor->poll(out, Clock::now())) << "the plan ran before the command that it waits for";
  ASSERT_TRUE(executor->submit(commands.copy({{2, 9}})).ok());
  poll();
  EXPECT_EQ(test::open_view(out).as<wire::CacheDone>()->id, 1u);
  poll();
  const wire::RecordView view = test::open_view(out);
  const auto* result = view.as<wire::StepResult>();
  ASSERT_NE(result, nullptr);
  EXPECT_EQ(view.array(result->tokens)[0], greedy[0]);
  EXPECT_EQ(view.array(result->tokens)[1], greedy[1]);
}

// bf16 through tiles, whose steps of 32 inputs have to begin at the same places in every step.
class AmxExecutorTest : public ExecutorTest {
 protected:
  AmxExecutorTest() {
    dtype = config::DTypeOption::bfloat16;
    isa = config::CpuIsa::amx;
  }
  void SetUp() override {
    if (!usable(Isa::amx)) GTEST_SKIP() << "neither AMX nor what its emulation needs";
    ExecutorTest::SetUp();
  }
};

TEST_P(AmxExecutorTest, ChunksBlocksAndOthersChangeNothing) {
  EXPECT_NE(executor->device().find("amx"), std::string::npos);
  expect_isolated({.temperature = 0});
  expect_isolated({.temperature = 1, .seed = 7});
}

std::string executor_name(const ::testing::TestParamInfo<std::tuple<const char*, On>>& info) {
  constexpr const char* kNames[] = {"cpu", "cuda", "cuda_invariant"};
  return std::string(std::get<0>(info.param)) + "_" + kNames[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(Goldens, ExecutorTest,
                         ::testing::Combine(::testing::Values("gqa3_tied", "gqa5_untied", "gqa8_tied",
                                                              "moe_end"),
                                            ::testing::Values(On::cpu, On::gpu, On::gpu_invariant)),
                         executor_name);
INSTANTIATE_TEST_SUITE_P(Goldens, AmxExecutorTest,
                         ::testing::Combine(::testing::Values("gqa3_tied", "gqa5_untied", "gqa8_tied",
                                                              "moe_end"),
                                            ::testing::Values(On::cpu)),
                         executor_name);
INSTANTIATE_TEST_SUITE_P(Goldens, WholeVocabularyTest,
                         ::testing::Combine(::testing::Values("gqa8_tied", "moe_end"),
                                            ::testing::Values(On::cpu, On::gpu, On::gpu_invariant)),
                         executor_name);

}  // namespace
}  // namespace troupe::model
