// Steps of a GPU ask for the working memory that step_scratch.h computes, to the byte, and for no more than
// is reserved.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "model/cuda/executor.h"
#include "model/cuda/step_scratch.h"
#include "model/cuda/steps.h"
#include "model/support/engine.h"
#include "model/support/tuned_golden.h"

namespace troupe::model {
namespace {

using kernels::KvFormat;
using kernels::WeightFormat;
using kernels::WeightKind;

class CudaStepScratch : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
};

/// Runs steps of padding rows of random sizes and compares each demand.
void check(const std::string& shape, const WeightFormats& formats, int rows, int sequences,
           bool batch_invariant = false) {
  const ModelSpec spec = *read_spec(test::tuned_directory(shape));
  Cuda device({.batch_invariant = batch_invariant});
  auto weights = Weights<Cuda>::dummy(device, spec, formats, 1);
  ASSERT_TRUE(weights.ok()) << weights.status().message;
  const DecoderLimits limits{.rows = rows,
                             .sequences = sequences,
                             .positions = 4096,
                             .kv_blocks = 4,
                             .kv_format = formats.kv,
                             .kv_ids = true,
                             .staged = false};
  auto decoder = Decoder<Cuda>::make(device, spec, formats, std::move(*weights), limits);
  ASSERT_TRUE(decoder.ok()) << decoder.status().message;
  wire::Capacity capacity;
  capacity.max_tokens_per_step = rows;
  capacity.max_slots = sequences;
  capacity.max_model_len = 4096;
  capacity.vocab_size = spec.vocab;
  capacity.max_steps_in_flight = 2;
  auto steps = CudaSteps::make(device, **decoder, capacity);
  ASSERT_TRUE(steps.ok()) << steps.status().message;
  const StepScratch scratch(spec, formats, kernels::cuda::traits_of(device), limits);
  const std::size_t most = scratch.most();
  steps->warm_up(most);
  std::vector<std::int32_t> read_rows(static_cast<std::size_t>(sequences));
  std::iota(read_rows.begin(), read_rows.end(), 0);
  device.upload(steps->sequence_memory().read_rows, read_rows.data(), read_rows.size() * sizeof read_rows[0]);
  device.take_scratch_demand();

  std::mt19937 random(3);
  const auto from = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  std::size_t largest = 0;
  for (int round = 0; round < 60; ++round) {
    StepSize step{.rows = round % 3 == 0 ? rows : from(1, rows)};
    step.sequences = from(1, std::min({step.rows, sequences, round % 2 == 0 ? 9 : sequences}));
    if (round % 5 == 0) step.sequences = std::min(step.rows, sequences);
    step.samples = from(0, step.sequences);
    step.scores = round % 4 == 0 ? from(0, step.rows) : 0;
    if (round % 4 > 1) step.reads = from(0, step.sequences);
    StepPacker::pad(steps->layout(), steps->next_piece(), 0, step.rows, step.sequences);
    steps->launch({.rows = step.rows,
                   .sequences = step.sequences,
                   .samples = step.samples,
                   .scores = step.scores,
                   .reads = step.reads});
    device.sync();
    const std::size_t asked = device.take_scratch_demand();
    EXPECT_EQ(asked, scratch.of(step))
        << step.rows << " rows of " << step.sequences << ", " << step.samples << " samples, " << step.scores
        << " scores, " << step.reads.value_or(-1) << " read";
    largest = std::max(largest, asked);
  }
  EXPECT_LE(largest, most);
  EXPECT_GE(device.scratch_bytes(), most);
}

// Two sequences decode beside the pieces of a long prompt, with 8-bit KV and as many slots as tokens a step.
TEST_F(CudaStepScratch, ALongPromptBesideTwoDecodesWithEightBitKv) {
  config::Options options = test::tuned_options("dense_gqa8");
  options.quantization.kv_cache = config::KvCacheDType::int8;
  options.scheduler.max_num_batched_tokens = 512;
  options.scheduler.max_num_seqs = 512;
  options.device.num_gpu_blocks_override = 100;
  auto files = open_model(options.model);
  ASSERT_TRUE(files.ok()) << files.status().message;
  ASSERT_TRUE(files->choose(config::Device::cuda, options.quantization).ok());
  auto executor = make_cuda_executor(*files, options);
  ASSERT_TRUE(executor.ok()) << executor.status().message;
  ASSERT_TRUE((*executor)->capacity().max_slots == 512 && (*executor)->capacity().max_tokens_per_step == 512);
  std::vector<test::Ask> asks;
  BlockId next = 0;
  for (const int length : {10, 70, 2500, 1000}) {
    test::Ask ask{.prompt = std::vector<TokenId>(static_cast<std::size_t>(length), 7 + length),
                  .outputs = 30};
    ask.starts_at = length >= 1000 ? 3 : 1;
    for (int i = 0; i <= (length + 30) / 64; ++i) ask.blocks.push_back(next++);
    asks.push_back(std::move(ask));
  }
  for (const test::Answer& answer : test::Engine(**executor).run(asks)) EXPECT_EQ(answer.tokens.size(), 30u);
}

WeightFormats formats_of(WeightFormat linears, KvFormat kv, WeightFormat head = DType::bf16) {
  WeightFormats formats = DType::bf16;
  formats.attention = formats.mlp = formats.experts = linears;
  formats.lm_head = head;
  formats.kv = kv;
  return formats;
}

TEST_F(CudaStepScratch, EightBitKvBesideMixedSteps) {
  check("moe_gqa5", formats_of(DType::bf16, KvFormat::int8), 512, 512);
  check("dense_gqa8", formats_of(DType::bf16, KvFormat::fp8), 300, 40);
}

TEST_F(CudaStepScratch, QuantisedWeights) {
  const WeightFormat int8{WeightKind::int8, DType::bf16}, groups{WeightKind::int4, DType::bf16, 64};
  check("moe_gqa5", formats_of(int8, KvFormat::int8), 2048, 64);
  check("moe_gqa5", formats_of(groups, KvFormat::plain), 3000, 64);
  check("dense_gqa8", formats_of(groups, KvFormat::int8, int8), 512, 300);
}

TEST_F(CudaStepScratch, Fp8AndBatchInvariance) {
  if (Cuda().features().fp8)
    check("moe_gqa5", formats_of({WeightKind::fp8, DType::bf16}, KvFormat::plain), 700, 64);
  check("moe_gqa5", formats_of(DType::bf16, KvFormat::int8), 512, 64, true);
}

}  // namespace
}  // namespace troupe::model
