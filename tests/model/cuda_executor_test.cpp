// What is the GPU executor's own: steps that overlap, batches of every size, slots that change hands while a
// step is out. That its tokens are the right ones at all is executor_test's subject.
#include "model/cuda/executor.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "gpu/cuda.h"
#include "model/checkpoint/model_files.h"
#include "model/cpu_executor.h"
#include "model/cuda/queue.h"
#include "model/support/files.h"
#include "model/support/plans.h"
#include "model/weights.h"
#include "support/patience.h"

namespace troupe::model {
namespace {

using test::golden_directory;
using test::Masks;
using test::Plans;

constexpr int kSlots = 24;  // buckets 1 … 8, 10 … 16, 20, 24

class CudaExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    options.model.directory = golden_directory("gqa8_tied").string();
    options.device.num_gpu_blocks_override = 3 * kSlots;
    options.device.batch_invariant = true;
    options.scheduler.max_num_seqs = kSlots;
    options.scheduler.max_num_batched_tokens = 256;
    options.scheduler.max_model_len = 192;
    executor = make(true);
    ASSERT_NE(executor, nullptr);
  }

  std::unique_ptr<Executor> make(bool on_gpu) const {
    auto files = open_model(options.model);
    EXPECT_TRUE(files.ok());
    wire::Capacity capacity;
    capacity.kv_blocks = 3 * kSlots;
    capacity.max_slots = kSlots;
    capacity.max_tokens_per_step = 256;
    capacity.max_model_len = 192;
    capacity.vocab_size = files->spec.vocab;
    auto made = on_gpu ? make_cuda_executor(*files, options) : make_cpu_executor(*files, options, capacity);
    EXPECT_TRUE(made.ok()) << made.status().message;
    return made.ok() ? std::move(*made) : nullptr;
  }

  // Result of the oldest step: its tokens in the order of its rows.
  static std::vector<TokenId> take(Executor& from) {
    std::vector<std::byte> out;
    const auto got = from.poll(out, Clock::now() + troupe::test::kPatience);
    EXPECT_TRUE(got.ok()) << got.status().message;
    if (!got.ok() || !*got) return {};
    const wire::RecordView view = test::open_view(out);
    const auto* result = view.as<wire::StepResult>();
    EXPECT_NE(result, nullptr);
    EXPECT_LE(result->started_ns, result->finished_ns);
    const auto tokens = view.array(result->tokens);
    return {tokens.begin(), tokens.end()};
  }

  static SlotRef slot(int i, std::uint32_t generation = 1) {
    return {static_cast<std::uint32_t>(i), generation};
  }

  // A prompt of its own for every sequence, shorter than a block or a little longer.
  static std::vector<TokenId> prompt(int i) {
    std::vector<TokenId> ids;
    for (int t = 0; t < 3 + i * 7 % 80; ++t) ids.push_back((i * 31 + t * 17) % 90);
    return ids;
  }

  static Plans& begin(Plans& plans, SlotRef ref, int i) {
    const std::vector<TokenId> ids = prompt(i);
    const auto length = static_cast<int>(ids.size());
    const auto first = static_cast<BlockId>(ref.slot) * 3;
    plans.start(ref, length, length, {.temperature = 0}).ids(ref, 0, ids).blocks(ref, 0, {first, first + 1});
    return plans.row(ref, 0, length, true);
  }

  // All sequences are prefilled one after the other; then `count` of them decode together, `steps` times with
  // two steps out.
  static std::vector<std::vector<TokenId>> decode(Executor& on, int count, int steps) {
    on.reset(1);
    Plans plans;
    std::vector<std::vector<TokenId>> all;
    for (int i = 0; i < count; ++i) {
      EXPECT_TRUE(on.submit(begin(plans, slot(i), i).plan()).ok());
      all.push_back(take(on));
    }
    const auto submit = [&](int step) {
      for (int i = 0; i < count; ++i) plans.row(slot(i), static_cast<int>(prompt(i).size()) + step, 1, true);
      const Status status = on.submit(plans.plan());
      EXPECT_TRUE(status.ok()) << status.message;
    };
    const auto collect = [&] {
      const std::vector<TokenId> tokens = take(on);
      EXPECT_EQ(tokens.size(), all.size());
      for (std::size_t i = 0; i < tokens.size() && i < all.size(); ++i) all[i].push_back(tokens[i]);
    };
    submit(0);
    for (int step = 1; step < steps; ++step) {
      submit(step);
      collect();
    }
    collect();
    return all;
  }

  config::Options options;
  std::unique_ptr<Executor> executor;
};

TEST_F(CudaExecutorTest, BatchesOfEverySizeDecodeAsOnTheCpu) {
  const auto cpu = make(false);
  const auto expected = decode(*cpu, kSlots, 12);
  for (const int count : {1, 2, 5, 8, 9, 13, 17, 21, 24}) {
    const auto got = decode(*executor, count, 12);
    ASSERT_EQ(got.size(), static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], expected[i]) << "row " << i << " of " << count;
  }
}

TEST_F(CudaExecutorTest, TwoStepsAreOutAndAThirdIsRefused) {
  Plans plans;
  ASSERT_EQ(executor->capacity().max_steps_in_flight, 2);
  ASSERT_TRUE(executor->submit(begin(plans, slot(0), 0).plan()).ok());
  const int length = static_cast<int>(prompt(0).size());
  ASSERT_TRUE(executor->submit(plans.row(slot(0), length, 1, true).plan()).ok());
  EXPECT_EQ(executor->submit(plans.row(slot(0), length + 1, 1, true).plan()).code, Code::overloaded);
  plans.take_back();
  const auto first = take(*executor);
  ASSERT_TRUE(executor->submit(plans.row(slot(0), length + 1, 1, true).plan()).ok());
  const auto second = take(*executor), third = take(*executor);
  EXPECT_EQ(decode(*executor, 1, 2)[0], (std::vector<TokenId>{first[0], second[0], third[0]}));
}

TEST_F(CudaExecutorTest, NothingToWaitForIsNoWait) {
  std::vector<std::byte> out;
  const TimePoint before = Clock::now();
  const auto got = executor->poll(out, before + 2 * troupe::test::kPatience);
  ASSERT_TRUE(got.ok());
  EXPECT_FALSE(*got);
  EXPECT_LT(Clock::now() - before, troupe::test::kPatience);
}

TEST_F(CudaExecutorTest, ASlotChangesHandsWhileItsStepIsOut) {
  Plans plans;
  const auto expected = decode(*executor, 2, 1);
  executor->reset(1);
  ASSERT_TRUE(executor->submit(begin(plans, slot(0), 0).plan()).ok());
  // The next tenant has another prompt in the same blocks.
  plans.finish(slot(0));
  ASSERT_TRUE(executor->submit(begin(plans, slot(0, 2), 1).plan()).ok());
  EXPECT_EQ(take(*executor)[0], expected[0][0]);
  // A row of the tenant that has gone is late, not wrong.
  const int length = static_cast<int>(prompt(1).size());
  plans.row(slot(0), 5, 1, true).row(slot(0, 2), length, 1, true);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  EXPECT_EQ(take(*executor)[0], expected[1][0]);
  const auto last = take(*executor);
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0], expected[1][1]);
}

TEST_F(CudaExecutorTest, APlanWithoutRowsStillChangesItsSequences) {
  Plans plans;
  const auto expected = decode(*executor, 1, 1);
  executor->reset(1);
  const std::vector<TokenId> ids = prompt(0);
  const auto length = static_cast<int>(ids.size());
  plans.start(slot(0), length, length, {.temperature = 0}).ids(slot(0), 0, ids);
  ASSERT_TRUE(executor->submit(plans.blocks(slot(0), 0, {7}).plan()).ok());
  ASSERT_TRUE(executor->submit(plans.row(slot(0), 0, length, true).plan()).ok());
  EXPECT_TRUE(take(*executor).empty());
  EXPECT_EQ(take(*executor)[0], expected[0][0]);
}

// Gated rows. Each test begins with a prompt whose row samples at once.
class GatedStepsTest : public CudaExecutorTest {
 protected:
  void SetUp() override {
    CudaExecutorTest::SetUp();
    if (IsSkipped()) return;
    expected = decode(*executor, 3, 4);
    executor->reset(1);
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(executor->submit(begin(plans, slot(i), i).plan()).ok());
      EXPECT_EQ(take(*executor)[0], expected[static_cast<std::size_t>(i)][0]);
    }
  }
  static int length(int i) { return static_cast<int>(prompt(i).size()); }
  // A row of sequence i that samples output `n`.
  void row(int i, int n) { plans.row(slot(i), length(i) + n - 1, 1, true); }
  void gated_row(int i, int n) { plans.gated_row(slot(i), length(i) + n - 1, 1); }
  TokenId at(int i, std::size_t n) const { return expected[static_cast<std::size_t>(i)][n]; }
  bool nothing_for_a_while() {
    std::vector<std::byte> out;
    const auto got = executor->poll(out, Clock::now() + std::chrono::milliseconds(50));
    EXPECT_TRUE(got.ok()) << got.status().message;
    return got.ok() && !*got;
  }
  Status send(Masks& some, std::uint64_t step) { return executor->submit(some.masks(step)); }

  std::vector<std::vector<TokenId>> expected;
  Plans plans;  // three steps have run
  Masks masks;
};

TEST_F(GatedStepsTest, AStepIsHeldUntilItsMasksAreThereAndTheNextBehindIt) {
  row(0, 1), gated_row(1, 1), gated_row(2, 1);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  row(0, 2), row(1, 2);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  EXPECT_TRUE(nothing_for_a_while());
  const TokenId wanted = at(1, 1) == 5 ? 6 : 5;
  ASSERT_TRUE(send(masks.allow(slot(1), {static_cast<std::uint32_t>(wanted)}), 4).ok());
  EXPECT_TRUE(nothing_for_a_while()) << "one mask of two";
  ASSERT_TRUE(send(masks.all(slot(2)), 4).ok());
  const auto first = take(*executor);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first, (std::vector<TokenId>{at(0, 1), wanted, at(2, 1)}));
  const auto second = take(*executor);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0], at(0, 2));
  row(2, 2);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  EXPECT_EQ(take(*executor), std::vector<TokenId>{at(2, 2)})
      << "the token that the gated row sampled is its input";
}

TEST_F(GatedStepsTest, MasksMayComeBeforeTheStepIsLaunched) {
  gated_row(0, 1);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  gated_row(1, 1);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  ASSERT_TRUE(send(masks.all(slot(1)), 5).ok());
  EXPECT_TRUE(nothing_for_a_while());
  ASSERT_TRUE(send(masks.all(slot(0)), 4).ok());
  EXPECT_EQ(take(*executor), std::vector<TokenId>{at(0, 1)});
  EXPECT_EQ(take(*executor), std::vector<TokenId>{at(1, 1)});
}

TEST_F(GatedStepsTest, MasksOfManyFormsDecide) {
  const auto vocab = static_cast<std::uint32_t>(executor->capacity().vocab_size);
  for (int n = 1; n < 8; ++n) {
    const auto only = static_cast<std::uint32_t>(n * 7);
    std::vector<std::uint32_t> bits((vocab + 31) / 32), others;
    bits[only / 32] = 1u << only % 32;
    for (std::uint32_t id = 0; id < vocab; ++id) {
      if (id != only) others.push_back(id);
    }
    for (int i = 0; i < 3; ++i) gated_row(i, n);
    ASSERT_TRUE(executor->submit(plans.plan()).ok());
    masks.add(slot(0), wire::MaskForm::bits, bits).add(slot(1), wire::MaskForm::denied, others);
    ASSERT_TRUE(send(masks.allow(slot(2), {only}), static_cast<std::uint64_t>(n + 3)).ok());
    EXPECT_EQ(take(*executor), std::vector<TokenId>(3, n * 7));
  }
}

TEST_F(GatedStepsTest, APromptsChunkAndLogprobsAreHeldToo) {
  const auto ids = prompt(11);  // 80 tokens
  plans.start(slot(5), 80, 80, {.temperature = 0, .logprobs = 2, .prompt_logprobs = 1}).ids(slot(5), 0, ids);
  plans.blocks(slot(5), 0, {15, 16}).gated_row(slot(5), 0, 80);
  row(0, 1);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  EXPECT_TRUE(nothing_for_a_while());
  ASSERT_TRUE(send(masks.allow(slot(5), {9}), 4).ok());
  std::vector<std::byte> out;
  const auto got = executor->poll(out, Clock::now() + troupe::test::kPatience);
  ASSERT_TRUE(got.ok() && *got);
  const wire::RecordView view = test::open_view(out);
  const auto* result = view.as<wire::StepResult>();
  EXPECT_EQ(view.array(result->tokens)[0], 9);
  EXPECT_EQ(view.array(result->tokens)[1], at(0, 1));
  EXPECT_EQ(view.array(result->logprobs).size(), 80u);
  EXPECT_EQ(view.array(result->logprobs).back().chosen.token, 9);
}

TEST_F(GatedStepsTest, CommandsRunWhileAStepIsHeld) {
  test::Commands commands;
  gated_row(0, 1);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  ASSERT_TRUE(executor->submit(commands.copy({{0, 60}})).ok());
  EXPECT_TRUE(nothing_for_a_while()) << "its end is told in its turn";
  ASSERT_TRUE(send(masks.all(slot(0)), 4).ok());
  EXPECT_EQ(take(*executor), std::vector<TokenId>{at(0, 1)});
  std::vector<std::byte> out;
  const auto got = executor->poll(out, Clock::now() + troupe::test::kPatience);
  ASSERT_TRUE(got.ok() && *got);
  EXPECT_NE(test::open_view(out).as<wire::CacheDone>(), nullptr);
}

TEST_F(GatedStepsTest, AResetGivesUpAHeldStep) {
  for (int round = 0; round < 5; ++round) {  // more often than there are pieces of pinned memory
    gated_row(0, 1), gated_row(1, 1);
    ASSERT_TRUE(executor->submit(plans.plan()).ok());
    row(0, 2);
    ASSERT_TRUE(executor->submit(plans.plan()).ok());
    if (round % 2 == 0) {
      ASSERT_TRUE(send(masks.all(slot(1)), 4).ok());
    }
    const TimePoint before = Clock::now();
    executor->reset(1);
    EXPECT_LT(Clock::now() - before, std::chrono::seconds(5));
    plans = Plans();
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(executor->submit(begin(plans, slot(i), i).plan()).ok());
      EXPECT_EQ(take(*executor)[0], at(i, 0));
    }
  }
  EXPECT_EQ(decode(*executor, 3, 4), expected);
}

TEST_F(GatedStepsTest, ALateGatedRowNeedsItsMaskToo) {
  plans.gated_row(slot(7, 9), 0, 1);
  row(0, 1);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  EXPECT_TRUE(nothing_for_a_while());
  ASSERT_TRUE(send(masks.all(slot(7, 9)), 4).ok());
  EXPECT_EQ(take(*executor), std::vector<TokenId>{at(0, 1)});
}

TEST_F(GatedStepsTest, SenselessMasksAreRefused) {
  gated_row(0, 1), row(1, 1);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  EXPECT_EQ(send(masks.all(slot(0)), 5).code, Code::invalid_argument);
  EXPECT_EQ(send(masks.all(slot(1)), 4).code, Code::invalid_argument);
  EXPECT_EQ(send(masks.allow(slot(0), {1u << 20}), 4).code, Code::invalid_argument);
  ASSERT_TRUE(send(masks.all(slot(0)), 4).ok());
  EXPECT_EQ(take(*executor).size(), 2u);
}

// A model whose step takes a millisecond, and an executor that waits for none.
class ImpatientExecutorTest : public CudaExecutorTest {
 protected:
  void SetUp() override {
    CudaExecutorTest::SetUp();
    if (IsSkipped()) return;
    write_slow_model();
    options.model.directory = slow_model.path().string();
    options.model.load_choices = config::LoadChoice::dummy;
    options.process.worker_timeout_s = 0;
    impatient = make(true);
    ASSERT_NE(impatient, nullptr);
    ASSERT_TRUE(impatient->submit(begin(plans, slot(0), 11).plan()).ok());  // 80 tokens
  }
  void write_slow_model() const {
    test::write_text(slow_model.path() / "config.json", R"({
    "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu", "use_bias": false,
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "head_dim": 128,
    "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-05, "rope_theta": 500000, "tie_word_embeddings": true, "vocab_size": 256})");
  }

  const troupe::test::TempDirectory slow_model;
  std::unique_ptr<Executor> impatient;
  Plans plans;
};

TEST_F(ImpatientExecutorTest, AStepThatDoesNotEndIsAnError) {
  std::vector<std::byte> out;
  const auto got = impatient->poll(out, Clock::now() + std::chrono::seconds(5));
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code, Code::internal);
  EXPECT_NE(got.status().message.find("step 1 has not ended"), std::string::npos) << got.status().message;
  EXPECT_EQ(impatient->submit(plans.row(slot(0), 63, 1, true).plan()).code, Code::internal)
      << "and so it stays";
}

TEST_F(ImpatientExecutorTest, AResetDoesNotWaitForAStepThatDoesNotEnd) {
  impatient->reset(1);
  plans.restart();
  const Status status = impatient->submit(begin(plans, slot(0, 2), 1).plan());
  EXPECT_EQ(status.code, Code::internal);
  EXPECT_NE(status.message.find("step 1 has not ended"), std::string::npos) << status.message;
}

TEST_F(GatedStepsTest, AStepThatIsHeldDoesNotCountAsHanging) {
  executor.reset();
  options.process.worker_timeout_s = 1;
  executor = make(true);
  ASSERT_NE(executor, nullptr);
  Plans others;
  const std::vector<TokenId> ids = prompt(0);
  others.start(slot(0), length(0), length(0), {.temperature = 0})
      .ids(slot(0), 0, ids)
      .blocks(slot(0), 0, {0});
  ASSERT_TRUE(executor->submit(others.gated_row(slot(0), 0, length(0)).plan()).ok());
  std::vector<std::byte> out;
  const auto got = executor->poll(out, Clock::now() + std::chrono::milliseconds(1500));
  ASSERT_TRUE(got.ok()) << got.status().message;
  EXPECT_FALSE(*got);
  ASSERT_TRUE(send(masks.all(slot(0)), 1).ok());
  EXPECT_EQ(take(*executor), std::vector<TokenId>{at(0, 0)});
}

TEST_F(ImpatientExecutorTest, AResetWaitsForAStepThatEnds) {
  options.process.worker_timeout_s = 20;
  const auto patient = make(true);
  ASSERT_NE(patient, nullptr);
  Plans others;
  ASSERT_TRUE(patient->submit(begin(others, slot(0), 11).plan()).ok());
  patient->reset(1);  // waits for the step
  others.restart();
  EXPECT_TRUE(patient->submit(begin(others, slot(0, 2), 1).plan()).ok());
  EXPECT_EQ(take(*patient).size(), 1u);
}

TEST_F(CudaExecutorTest, TooManyBlocksAreRefusedInOneSentence) {
  executor.reset();
  options.device.num_gpu_blocks_override = 1 << 26;
  auto files = open_model(options.model);
  const auto made = make_cuda_executor(*files, options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code, Code::unavailable);
  EXPECT_NE(made.status().message.find("lower --num-gpu-blocks-override"), std::string::npos)
      << made.status().message;
}

// A device whose KV memory lies nowhere: the first step that writes a key is a fault of the GPU.
[[noreturn]] void run_into_a_fault() {
  const config::ModelOptions options{.directory = golden_directory("gqa8_tied").string(),
                                     .load_choices = config::LoadChoice::dummy};
  const auto files = open_model(options);
  TROUPE_CHECK(files.ok());
  wire::Capacity capacity;
  capacity.kv_blocks = 4;
  capacity.max_slots = 2;
  capacity.max_tokens_per_step = 64;
  capacity.max_model_len = 128;
  capacity.vocab_size = files->spec.vocab;
  CudaModel model;
  model.device = std::make_unique<Cuda>();
  auto weights = Weights<Cuda>::dummy(*model.device, files->spec, files->dtype, 0);
  auto decoder =
      Decoder<Cuda>::make(*model.device, files->spec, files->dtype, std::move(*weights),
                          {.rows = 64, .sequences = 2, .positions = 128, .kv_ids = true, .staged = false},
                          reinterpret_cast<void*>(std::uintptr_t{1} << 45));
  model.decoder = std::move(*decoder);
  model.steps =
      std::make_unique<CudaSteps>(std::move(*CudaSteps::make(*model.device, *model.decoder, capacity)));
  CudaQueue queue(capacity, std::move(model), std::chrono::seconds(20));

  Plans plans;
  plans.start({0, 1}, 3, 3).ids({0, 1}, 0, {1, 2, 3}).blocks({0, 1}, 0, {0}).row({0, 1}, 0, 3, true);
  Status status = queue.submit(plans.plan());
  std::vector<std::byte> out;
  const TimePoint begin = Clock::now();
  while (status.ok() && Clock::now() - begin < std::chrono::seconds(10)) {
    status = queue.poll(out, Clock::now() + std::chrono::microseconds(2)).status();
  }
  std::fprintf(stderr, "%s\n", status.message.c_str());
  std::fprintf(stderr, "then %s\n", queue.submit(plans.row({0, 1}, 3, 1, true).plan()).message.c_str());
  std::_Exit(status.code == Code::internal ? 7 : 8);
}

TEST(CudaExecutorDeathTest, AFaultOfTheGpuIsAnErrorThatNamesItsStep) {
  // In a process of its own: no later test could use the GPU.
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_into_a_fault(), ::testing::ExitedWithCode(7), "on GPU 0.*step 1.*illegal.*then .*illegal");
}

}  // namespace
}  // namespace troupe::model
