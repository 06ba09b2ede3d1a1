// Kernels that overlap give the same bits as kernels that do not: 1,000 steps through the executor that
// serves, decode steps (graphs) and pieces of prompts mixed, some with gated rows, on shapes that take the
// fast kernels. What a kernel reads too early differs between two steps, and a wrong bit spreads to every
// later token of its sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "gpu/cuda.h"
#include "model/checkpoint/model_files.h"
#include "model/cuda/executor.h"
#include "model/plan_check.h"
#include "model/step_gates.h"
#include "model/support/files.h"
#include "model/support/plans.h"
#include "support/patience.h"

namespace troupe::model {
namespace {

using test::Masks;
using test::Plans;

constexpr int kSteps = 1000;
constexpr int kSlots = 256;
constexpr int kMaxTokens = 512;  // of a sequence
constexpr int kBlocksPerSlot = kMaxTokens / 64;
constexpr int kTokensPerStep = 1024;
constexpr int kVocab = 20'000;

const char* const kDense = R"({
  "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "torch_dtype": "bfloat16",
  "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu", "use_bias": false,
  "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 6, "head_dim": 128,
  "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-05, "rope_theta": 500000, "tie_word_embeddings": true, "vocab_size": 20000})";

const char* const kMixture = R"({
  "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "torch_dtype": "bfloat16",
  "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu", "use_bias": false,
  "hidden_size": 1280, "intermediate_size": 2560, "num_hidden_layers": 4, "head_dim": 128,
  "num_attention_heads": 10, "num_key_value_heads": 2, "max_position_embeddings": 4096,
  "moe_intermediate_size": 384, "moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2,
  "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1, "moe_norm_min": 1e-12,
  "moe_capacity": [64, 64, 64], "moe_use_aux_free": true,
  "rms_norm_eps": 1e-05, "rope_theta": 500000, "tie_word_embeddings": true, "vocab_size": 20000})";

/// The same plans for every executor: sequences of random lengths and sampling parameters that come and go,
/// and random subsets of them in every step.
class PlanStream {
 public:
  wire::RecordView next() {
    begin_phase();
    rows_ = 0;
    tokens_ = 0;
    if (pieces_step_) add_prompts();
    add_decode_rows();
    if (rows_ == 0) add_prompts();
    graph_steps_ += tokens_ == rows_ && !scored_ && rows_ == samples_;
    largest_ = std::max(largest_, samples_);
    smallest_ = std::min(smallest_, std::max(samples_, 1));
    scored_ = false;
    samples_ = 0;
    return plans_.plan();
  }

  /// The masks of the last plan; each allows about half of the vocabulary. None: an empty vector.
  std::vector<std::byte> masks() {
    if (gated_.empty()) return {};
    for (const SlotRef slot : gated_) {
      std::vector<std::uint32_t> words((kVocab + 31) / 32);
      for (std::uint32_t& word : words) word = mask_random_();
      masks_.add(slot, wire::MaskForm::bits, words);
    }
    gated_.clear();
    const auto bytes = masks_.masks(static_cast<std::uint64_t>(step_)).bytes();
    return {bytes.begin(), bytes.end()};
  }

  int graph_steps() const { return graph_steps_; }
  int largest_batch() const { return largest_; }
  int smallest_batch() const { return smallest_; }

 private:
  struct Sequence {
    std::uint32_t generation = 0;
    int prompt = 0;
    int length = 0;  // at which it ends
    int done = 0;    // tokens with keys and values
    bool live = false;
    bool scored = false;  // wants logprobs of its prompt
    int last_step = 0;    // that has a row of it
  };

  int random(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  SlotRef ref(int slot) const { return {static_cast<std::uint32_t>(slot), at(slot).generation}; }
  Sequence& at(int slot) { return sequences_[static_cast<std::size_t>(slot)]; }
  const Sequence& at(int slot) const { return sequences_[static_cast<std::size_t>(slot)]; }

  // A phase is some steps with about the same number of rows. Every third step takes pieces of prompts.
  void begin_phase() {
    static constexpr int kBatches[] = {1,  256, 2,   3,  200, 4,  5,  8, 128, 9,
                                       12, 16,  100, 24, 31,  48, 64, 7, 160, 1};
    if (step_ % 25 == 0) wanted_ = kBatches[static_cast<std::size_t>(step_ / 25) % std::size(kBatches)];
    pieces_step_ = step_ % 3 == 2 || step_ < 40;
    ++step_;
  }

  // Pieces of prompts of up to four sequences, new ones among them.
  void add_prompts() {
    int pieces = step_ < 40 ? 16 : 1 + random(4);
    const int first = random(kSlots);
    for (int i = 0; i < kSlots && pieces > 0; ++i) {
      const int slot = (first + i) % kSlots;
      Sequence& s = at(slot);
      if (!s.live) start(slot);
      if (s.done >= s.prompt || s.last_step == step_) continue;
      const int room = kTokensPerStep - kSlots - tokens_;
      const int count = std::min({s.prompt - s.done, 1 + random(150), room});
      if (count <= 0) return;
      add_row(slot, count);
      --pieces;
    }
  }

  void start(int slot) {
    Sequence& s = at(slot);
    const std::uint32_t generation = s.generation + 1;
    s = {.generation = generation, .prompt = 1 + random(random(4) == 0 ? 300 : 40), .live = true};
    s.length = std::min(kMaxTokens, s.prompt + 20 + random(150));
    wire::Sampling sampling{.temperature = random(2) == 0 ? 0.0f : 0.8f,
                            .top_p = random(3) == 0 ? 0.9f : 1.0f,
                            .repetition_penalty = random(4) == 0 ? 1.2f : 1.0f,
                            .seed = random_(),
                            .logprobs = random(3) - 1};
    if (random(10) == 0) sampling.prompt_logprobs = 1;
    s.scored = sampling.prompt_logprobs >= 0;
    std::vector<TokenId> ids(static_cast<std::size_t>(s.prompt));
    for (TokenId& id : ids) id = random(kVocab);
    std::vector<BlockId> blocks(kBlocksPerSlot);
    for (int b = 0; b < kBlocksPerSlot; ++b) blocks[static_cast<std::size_t>(b)] = slot + kSlots * b;
    plans_.start(ref(slot), s.prompt, s.prompt, sampling).ids(ref(slot), 0, ids).blocks(ref(slot), 0, blocks);
  }

  void add_decode_rows() {
    const int first = random(kSlots);
    for (int i = 0; i < kSlots && samples_ < wanted_; ++i) {
      const int slot = (first + i) % kSlots;
      Sequence& s = at(slot);
      if (!s.live || s.done < s.prompt || s.last_step == step_) continue;
      if (s.done + 1 >= s.length) {
        plans_.finish(ref(slot));
        s.live = false;
        continue;
      }
      add_row(slot, 1);
    }
  }

  void add_row(int slot, int count) {
    Sequence& s = at(slot);
    const bool samples = s.done + count >= s.prompt;
    if (samples && step_ % 4 == 1 && slot % 3 == 0) {
      plans_.gated_row(ref(slot), s.done, count);
      gated_.push_back(ref(slot));
    } else {
      plans_.row(ref(slot), s.done, count, samples);
    }
    scored_ |= s.scored && s.done < s.prompt;
    s.done += count;
    s.last_step = step_;
    ++rows_;
    tokens_ += count;
    samples_ += samples;
  }

  Plans plans_;
  Masks masks_;
  std::vector<SlotRef> gated_;  // of the plan at hand
  std::mt19937 random_{17}, mask_random_{18};
  std::vector<Sequence> sequences_ = std::vector<Sequence>(kSlots);
  int step_ = 0, wanted_ = 1;
  bool pieces_step_ = false;
  int rows_ = 0, tokens_ = 0, samples_ = 0;  // of the plan at hand
  bool scored_ = false;
  int graph_steps_ = 0, largest_ = 0, smallest_ = kSlots;
};

using Records = std::vector<std::vector<std::byte>>;

/// The results of all steps, without their times.
Records run_all(const config::Options& options, PlanStream& stream) {
  Records results;
  const auto files = open_model(options.model);
  EXPECT_TRUE(files.ok()) << files.status().message;
  if (!files.ok()) return results;
  const auto executor = make_cuda_executor(*files, options);
  EXPECT_TRUE(executor.ok()) << executor.status().message;
  if (!executor.ok()) return results;
  const auto take = [&] {
    std::vector<std::byte> out;
    const auto got = (*executor)->poll(out, Clock::now() + troupe::test::kPatience);
    EXPECT_TRUE(got.ok() && *got) << (got.ok() ? "nothing" : got.status().message);
    if (!got.ok() || !*got) return false;
    auto* result = reinterpret_cast<wire::StepResult*>(out.data());
    result->started_ns = result->finished_ns = 0;
    results.push_back(std::move(out));
    return true;
  };
  const auto submit = [&](const wire::RecordView& record) {
    const Status status = (*executor)->submit(record);
    EXPECT_TRUE(status.ok()) << status.message;
    return status.ok();
  };
  std::vector<std::byte> masks;  // of the step before: they come behind the next plan
  for (int step = 0; step < kSteps; ++step) {
    if (!submit(stream.next())) return results;
    if (!masks.empty() && !submit(test::open_view(masks))) return results;
    if (step > 0 && !take()) return results;
    masks = stream.masks();
    if (step % 8 < 4 && !masks.empty()) {  // or at once
      if (!submit(test::open_view(masks))) return results;
      masks.clear();
    }
  }
  if (!masks.empty()) submit(test::open_view(masks));
  take();
  return results;
}

class CudaOverlapTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    if (!Cuda().programmatic()) GTEST_SKIP() << "this GPU does not overlap kernels";
    test::write_text(model.path() / "config.json", GetParam());
    options.model.directory = model.path().string();
    options.model.load_choices = config::LoadChoice::dummy;
    options.device.num_gpu_blocks_override = kSlots * kBlocksPerSlot;
    options.scheduler.max_num_seqs = kSlots;
    options.scheduler.max_num_batched_tokens = kTokensPerStep;
    options.scheduler.max_model_len = kMaxTokens;
  }

  const troupe::test::TempDirectory model;
  config::Options options;
};

TEST_P(CudaOverlapTest, AThousandStepsGiveTheSameBitsWithAndWithout) {
  PlanStream stream, again;
  options.device.overlap_kernels = true;
  const Records with = run_all(options, stream);
  options.device.overlap_kernels = false;
  const Records without = run_all(options, again);
  ASSERT_EQ(with.size(), std::size_t{kSteps});
  ASSERT_EQ(without.size(), std::size_t{kSteps});
  std::size_t tokens = 0, different = 0;
  for (std::size_t step = 0; step < with.size(); ++step) {
    tokens += test::open_view(with[step]).as<wire::StepResult>()->tokens.count;
    if (with[step] == without[step]) continue;
    if (different++ == 0) ADD_FAILURE() << "the results of step " << step + 1 << " are the first to differ";
  }
  EXPECT_EQ(different, 0u) << "of " << kSteps << " steps";
  EXPECT_GT(tokens, 20'000u);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaOverlapTest, ::testing::Values(kDense, kMixture),
                         [](const auto& info) { return info.index == 0 ? "Dense" : "Mixture"; });

// Without a GPU: the plans are such as an engine may send, and what the test above counts holds.
TEST(CudaOverlapPlansTest, AreAdmittedAndMixed) {
  wire::Capacity capacity;
  capacity.kv_blocks = kSlots * kBlocksPerSlot;
  capacity.max_slots = kSlots;
  capacity.max_tokens_per_step = kTokensPerStep;
  capacity.max_model_len = kMaxTokens;
  capacity.vocab_size = kVocab;
  capacity.max_logprobs = 5;
  PlanCheck check(capacity);
  StepGates gates(capacity);
  PlanStream stream;
  int gated = 0;
  for (int step = 0; step < kSteps; ++step) {
    const wire::RecordView record = stream.next();
    const auto& plan = *record.as<wire::StepPlan>();
    const Status status = check.admit(record, plan);
    ASSERT_TRUE(status.ok()) << status.message;
    gates.open(record, plan);
    const std::uint64_t number = plan.step;
    if (const std::vector<std::byte> masks = stream.masks(); !masks.empty()) {
      const wire::RecordView some = test::open_view(masks);
      const Status taken = gates.take(some, *some.as<wire::StepMasks>());
      ASSERT_TRUE(taken.ok()) << taken.message;
      ++gated;
    }
    ASSERT_TRUE(gates.ready(number));
    gates.close(number);
  }
  EXPECT_GT(gated, kSteps / 8);
  EXPECT_EQ(stream.largest_batch(), kSlots);
  EXPECT_EQ(stream.smallest_batch(), 1);
  EXPECT_GT(stream.graph_steps(), kSteps / 2);
  EXPECT_LT(stream.graph_steps(), kSteps * 3 / 4);
}

TEST(CudaOverlapSwitchTest, TurnsProgrammaticLaunchesOff) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  EXPECT_FALSE(Cuda({.overlap = false}).programmatic());
}

}  // namespace
}  // namespace troupe::model
