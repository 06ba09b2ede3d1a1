// The bounds against figures computed independently for the published shapes.
#include "model/roofline.h"

#include <gtest/gtest.h>

#include "model/ranks/part.h"
#include "model/support/shapes.h"

namespace troupe::model {
namespace {

ModelSpec dense() { return test::small_ernie(); }

ModelSpec mixture() { return test::large_mixture(); }

// H200: 4.3 TB/s of copies and 800 TFLOP/s.
constexpr Ceilings kGpu{4.3e12, 800e12};

TEST(Roofline, DecodeOfTheDenseShape) {
  EXPECT_NEAR(decode_work(dense(), DType::bf16, 1, 0).weight_bytes, 0.721e9, 0.001e9);
  EXPECT_NEAR(1 / bound_s(decode_work(dense(), DType::bf16, 1, 0), kGpu), 5960, 5);
  EXPECT_NEAR(1 / bound_s(decode_work(dense(), DType::bf16, 1, 2048), kGpu), 5664, 6);
  EXPECT_NEAR(256 / bound_s(decode_work(dense(), DType::bf16, 256, 2048), kGpu), 103300, 150);
}

TEST(Roofline, DecodeOfTheMixture) {
  EXPECT_NEAR(distinct_experts(mixture(), 1), 6, 1e-9);
  EXPECT_NEAR(distinct_experts(mixture(), 8), 34.9, 0.05);
  EXPECT_NEAR(distinct_experts(mixture(), 64), 63.9, 0.05);
  EXPECT_NEAR(decode_work(mixture(), DType::bf16, 1, 0).weight_bytes, 6.713e9, 0.01e9);
  EXPECT_NEAR(1 / bound_s(decode_work(mixture(), DType::bf16, 1, 2048), kGpu), 630, 1);
  EXPECT_NEAR(128 / bound_s(decode_work(mixture(), DType::bf16, 128, 2048), kGpu), 9378, 10);
  EXPECT_NEAR(256 / bound_s(decode_work(mixture(), DType::bf16, 256, 2048), kGpu), 14931, 15);
}

// What the ranks have together is the model, but for the router, which each has whole.
TEST(Roofline, TheRanksPartsAddUp) {
  const StepWork whole = decode_work(mixture(), DType::bf16, 8, 2048);
  const double router = 4.0 * mixture().moe_layers() * mixture().experts * mixture().hidden;
  for (const bool expert_parallel : {false, true}) {
    StepWork all;
    for (int rank = 0; rank < 2; ++rank) {
      const auto part = part_of(mixture(), {rank, 2, expert_parallel});
      ASSERT_TRUE(part.ok()) << part.status().message;
      const StepWork work = decode_work(*part, DType::bf16, 8, 2048);
      all.weight_bytes += work.weight_bytes;
      all.kv_bytes += work.kv_bytes;
      all.flops += work.flops;
    }
    EXPECT_NEAR(all.weight_bytes, whole.weight_bytes + router, 1e-9 * whole.weight_bytes) << expert_parallel;
    EXPECT_NEAR(all.kv_bytes, whole.kv_bytes, 1e-9 * whole.kv_bytes);
    EXPECT_NEAR(all.flops, whole.flops + 2 * 8 * router / 4, 1e-9 * whole.flops) << expert_parallel;
  }
}

TEST(Roofline, PrefillIsArithmeticWhenThePromptIsLong) {
  EXPECT_NEAR(8192 / bound_s(prefill_work(dense(), DType::bf16, 8192), kGpu), 757e3, 2e3);
  EXPECT_NEAR(8192 / bound_s(prefill_work(mixture(), DType::bf16, 8192), kGpu), 112.6e3, 0.3e3);
  // 512 tokens read nearly all experts: the weights take longer than the arithmetic.
  const StepWork work = prefill_work(mixture(), DType::bf16, 512);
  EXPECT_NEAR(work.weight_bytes / kGpu.bytes_per_s, 9.84e-3, 0.05e-3);
  EXPECT_GT(work.weight_bytes / kGpu.bytes_per_s, work.flops / kGpu.flops_per_s);
}

TEST(Roofline, AChunkAtAPositionAttendsToAllBefore) {
  const StepWork whole = prefill_work(dense(), DType::bf16, 1000);
  const StepWork first = prefill_work(dense(), DType::bf16, 600),
                 second = prefill_work(dense(), DType::bf16, 400, 600);
  // In the last layer, the last token of each.
  const double of_token_599 = 4.0 * dense().q_width() * 600;
  EXPECT_NEAR(first.attention_flops + second.attention_flops, whole.attention_flops + of_token_599,
              1e-9 * whole.attention_flops);
}

}  // namespace
}  // namespace troupe::model
