// The working memory that warm-up reserves is the most that any step within the limits asks for.
#include "model/cuda/step_scratch.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/cuda/scratch.h"
#include "model/cuda/decode_buckets.h"
#include "model/ranks/part.h"
#include "model/support/shapes.h"

namespace troupe::model {
namespace {

using kernels::KvFormat;
using kernels::WeightFormat;
using kernels::WeightKind;
using kernels::cuda::GpuTraits;
using kernels::cuda::kH200;

struct ModelCase {
  std::string name;
  ModelSpec spec;
  WeightFormats formats = DType::bf16;
  GpuTraits gpu = kH200;
};

WeightFormats with(WeightFormat experts, WeightFormat others, KvFormat kv, WeightFormat head = DType::bf16) {
  WeightFormats formats = DType::bf16;
  formats.experts = experts;
  formats.attention = formats.mlp = others;
  formats.lm_head = head;
  formats.kv = kv;
  return formats;
}

GpuTraits ampere() {
  return {
      .multiprocessors = 108, .block_shared_bytes = 163 << 10, .memory_bytes_per_s = 2e12, .clock_hz = 1.4e9};
}
GpuTraits invariant() {
  GpuTraits gpu = kH200;
  gpu.batch_invariant = true;
  return gpu;
}

/// A mixture with a second group of experts, of this width.
ModelSpec seeing(ModelSpec mixture, int width) {
  mixture.vision = {
      .depth = 2, .width = 1280, .heads = 16, .intermediate = 5120, .expert_intermediate = width};
  return mixture;
}

ModelSpec drafting(ModelSpec spec) {
  spec.draft_layers = 1;
  return spec;
}
WeightFormats with_draft(WeightFormat draft) {
  WeightFormats formats = DType::bf16;
  formats.draft = draft;
  return formats;
}

std::vector<ModelCase> model_cases() {
  const WeightFormat int8{WeightKind::int8, DType::bf16}, int4{WeightKind::int4, DType::bf16},
      groups{WeightKind::int4, DType::bf16, 64}, fp8{WeightKind::fp8, DType::bf16};
  const ModelSpec dense = test::small_ernie(), mixture = test::large_mixture();
  std::vector<ModelCase> made{
      {"0.3B", dense},
      {"0.3B, groups of 64, int8 KV", dense, with(groups, groups, KvFormat::int8, groups)},
      {"0.3B, fp8", dense, with(fp8, fp8, KvFormat::plain)},
      {"21B", mixture},
      {"21B, int8 KV", mixture, with(DType::bf16, DType::bf16, KvFormat::int8)},
      {"21B, wint4, fp8 KV", mixture, with(int4, int8, KvFormat::fp8, int8)},
      {"21B, groups", mixture, with(groups, int8, KvFormat::int8)},
      {"21B, fp8", mixture, with(fp8, fp8, KvFormat::plain)},
      {"21B, int8 KV, batch-invariant", mixture, with(int8, int8, KvFormat::int8), invariant()},
      {"21B, int8 KV, no Hopper", mixture, with(int8, int8, KvFormat::int8), ampere()},
      {"21B, f32", mixture, DType::f32},
      {"28B-VL", seeing(mixture, 512)},
      {"28B-VL, wint8", seeing(mixture, 512), with(int8, int8, KvFormat::plain)},
      {"28B-VL, fp8", seeing(mixture, 512), with(fp8, fp8, KvFormat::plain)},
      {"wide experts of vision rows", seeing(mixture, 6144)},
      {"0.3B, a draft layer", drafting(dense)},
      {"21B, int8 KV, a draft layer", drafting(mixture), with(DType::bf16, DType::bf16, KvFormat::int8)},
      {"21B, a draft layer in groups", drafting(mixture), with_draft(groups)},
      {"21B, a draft layer in fp8", drafting(mixture), with_draft(fp8)},
  };
  for (const bool expert_parallel : {false, true}) {
    made.push_back({expert_parallel ? "21B, a rank's experts" : "21B, a rank's width",
                    *part_of(mixture, {.rank = 1, .ranks = 2, .expert_parallel = expert_parallel}),
                    with(int8, int8, KvFormat::int8)});
  }
  return made;
}

DecoderLimits limits(int rows, int sequences) { return {.rows = rows, .sequences = sequences}; }

// The step of the report: two sequences that decode beside a chunk, 512 tokens and slots, int8 KV.
TEST(StepScratch, AMixedStepWithEightBitKvFits) {
  const ModelCase model{"", test::large_mixture(), with(DType::bf16, DType::bf16, KvFormat::int8)};
  const StepScratch scratch(model.spec, model.formats, kH200, limits(512, 512));
  const std::size_t mixed = scratch.of({.rows = 512, .sequences = 3, .samples = 3});
  EXPECT_EQ(mixed, 322'756'992u);
  EXPECT_GT(mixed, scratch.of({.rows = 512, .sequences = 1, .samples = 1}));
  EXPECT_GT(mixed, scratch.of({.rows = 512, .sequences = 512, .samples = 512}))
      << "no piece of a prompt in it";
  EXPECT_GT(scratch.most(), mixed);
  EXPECT_EQ(scratch.most(), scratch.of({.rows = 512, .sequences = 511, .samples = 1}));
}

// Without clusters sampling keeps a row's logits in working memory; scoring reads them where they are.
TEST(StepScratch, RowsThatAreScoredAreNotSampled) {
  const ModelSpec dense = test::small_ernie();
  const StepScratch scratch(dense, DType::bf16, ampere(), limits(512, 64));
  const auto of = [&](int samples, int scores) {
    return scratch.of({.rows = 512, .sequences = 64, .samples = samples, .scores = scores});
  };
  const std::size_t row = static_cast<std::size_t>(dense.vocab) * sizeof(float);
  EXPECT_EQ(of(64, 0), 64 * row);
  EXPECT_EQ(of(64, 512), 64 * row);
  EXPECT_LT(of(0, 512), 64 * row);
  EXPECT_EQ(of(0, 512), of(0, 0));
  EXPECT_EQ(scratch.most(), 64 * row);
}

TEST(StepScratch, BothGroupsOfExpertsAreAsked) {
  const ModelSpec mixture = test::large_mixture();
  const auto most = [](const ModelSpec& spec) {
    return StepScratch(spec, DType::bf16, kH200, limits(2048, 64)).most();
  };
  EXPECT_EQ(most(seeing(mixture, 32)), most(mixture));
  EXPECT_GT(most(seeing(mixture, 6144)), most(mixture));
}

TEST(StepScratch, TheDraftLayerIsAsked) {
  const WeightFormats formats = with_draft({WeightKind::int8, DType::bf16});
  const ModelSpec mixture = test::large_mixture();
  const StepScratch plain(mixture, formats, kH200, limits(512, 64)),
      drafts(drafting(mixture), formats, kH200, limits(512, 64));
  // Only its weights are codes, which many rows expand.
  const StepSize step{.rows = 512, .sequences = 64, .samples = 64};
  EXPECT_EQ(drafts.of(step), plain.of(step));
  StepSize drafting_step = step;
  drafting_step.draft_rows = 512 + 64;
  drafting_step.drafts = 64;
  EXPECT_GT(drafts.of(drafting_step), plain.most());
  EXPECT_EQ(drafts.of(drafting_step), drafts.most());
}

TEST(StepScratch, NoPlanAsksForMoreThanTheMost) {
  std::mt19937 random(7);
  const auto from = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  for (const ModelCase& model : model_cases()) {
    for (const auto& [rows, sequences] :
         {std::pair{512, 512}, {8192, 512}, {512, 32}, {64, 200}, {1, 1}, {2500, 7}}) {
      const StepScratch scratch(model.spec, model.formats, model.gpu, limits(rows, sequences));
      const std::size_t most = scratch.most();
      const std::vector<int> buckets = decode_buckets(std::min(rows, sequences));
      std::size_t largest = 0;
      for (int plan = 0; plan < 1500; ++plan) {
        // Few and many rows and sequences; plans at the limits; decode steps as they are padded.
        StepSize step{.rows = from(1, plan % 3 == 0 ? std::min(rows, 600) : rows)};
        if (plan % 7 == 0) step.rows = rows;
        step.sequences = from(1, std::min({step.rows, sequences, plan % 2 == 0 ? 12 : sequences}));
        if (plan % 11 == 0) step.sequences = std::min(step.rows, sequences);
        step.samples = from(0, step.sequences);
        step.scores = plan % 5 == 0 ? from(0, step.rows) : 0;
        if (plan % 4 == 0) {
          step.sequences = from(1, std::min(rows, sequences));
          step.rows = step.sequences = step.samples = buckets[bucket_of(buckets, step.sequences)];
        }
        if (plan % 3 > 0) step.reads = from(0, step.sequences);
        if (model.spec.draft_layers > 0) {
          step.reads.reset();
          step.draft_rows = from(step.sequences, step.rows + step.sequences);
          step.drafts = from(0, step.sequences);
        }
        const std::size_t asked = scratch.of(step);
        largest = std::max(largest, asked);
        ASSERT_LE(asked, most) << model.name << ": " << step.rows << " rows of " << step.sequences << ", "
                               << step.samples << " samples, " << step.scores << " scores, "
                               << step.reads.value_or(-1) << " read; limits " << rows << " and " << sequences;
      }
      EXPECT_GT(largest, most / 2) << model.name << ": the most is no guess";
    }
  }
}

TEST(StepScratch, StepsThatVerifyDraftsAskForNoMore) {
  constexpr int kVerified = 9, kSequences = 40, kDrafts = 100;
  for (const ModelCase& model : model_cases()) {
    DecoderLimits most_of_a_step = limits(256, kSequences);
    most_of_a_step.drafts = kDrafts;
    const StepScratch scratch(model.spec, model.formats, model.gpu, most_of_a_step, kVerified);
    const std::size_t most = scratch.most();
    for (int tokens = 2; tokens <= kVerified; ++tokens) {
      for (int count = 1; count <= kSequences && count * tokens <= 256; ++count) {
        const StepSize step{.rows = count * tokens,
                            .sequences = count,
                            .samples = std::min(count * tokens, kSequences + kDrafts),
                            .most_tokens = tokens};
        ASSERT_LE(scratch.of(step), most) << model.name << ": " << count << " of " << tokens;
      }
    }
  }
  // Rows of logits behind drafts count: a step has more of them than sequences.
  const auto most = [](int drafts) {
    DecoderLimits few = limits(64, 2);
    few.drafts = drafts;
    return StepScratch(test::small_ernie(), DType::bf16, ampere(), few, 1 + drafts).most();
  };
  EXPECT_GT(most(60), most(0));
}

// What an op lays out is what it asks for: the pieces of its memory follow each other without gaps or
// overlap, and end where the demand ends.
TEST(StepScratch, LayoutsEndWhereTheDemandEnds) {
  for (const ModelCase& model : model_cases()) {
    if (model.spec.experts == 0) continue;
    for (const int rows : {1, 7, 64, 500, 4000}) {
      const ModelSpec& spec = model.spec;
      const int held = spec.experts_held();
      const kernels::Moe moe{.router = {nullptr, DType::f32, spec.experts, spec.hidden},
                             .gate_up = {{nullptr, model.formats.experts,
                                          kernels::gate_up_outputs(spec.expert_intermediate), spec.hidden},
                                         held + spec.shared_experts},
                             .down = {{nullptr, model.formats.experts, spec.hidden, spec.expert_intermediate},
                                      held + spec.shared_experts},
                             .experts = spec.experts,
                             .first = spec.held_experts.first,
                             .held = held,
                             .shared = spec.shared_experts,
                             .top_k = spec.top_k,
                             .rows = rows};
      auto* const base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
      const kernels::cuda::MoeLayout laid = kernels::cuda::lay_out(moe, model.gpu, base);
      const std::size_t bytes = scratch_bytes(moe, model.gpu);
      EXPECT_EQ(laid.bytes, bytes) << model.name;
      const auto places = static_cast<std::size_t>(kernels::cuda::most_places(moe));
      const auto row = [&](int columns) {
        return static_cast<std::size_t>(kernels::padded(columns)) * size_of(model.formats.activations);
      };
      const auto* const counts = reinterpret_cast<std::byte*>(laid.routing.counts);
      EXPECT_LE(counts + static_cast<std::size_t>((rows + 15) / 16 * (spec.experts + 1)) * 4,
                laid.activations);
      EXPECT_LE(laid.activations + places * row(spec.expert_intermediate), laid.outputs);
      EXPECT_LE(laid.outputs + places * row(spec.hidden), laid.working_memory);
      EXPECT_LE(laid.working_memory, base + bytes);
    }
  }
}

}  // namespace
}  // namespace troupe::model
