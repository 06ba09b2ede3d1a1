// Rows that nothing reads behind the last layer: which they are, which ops leave them out, and that the
// others keep their bits. The goldens (golden_test, ranks_golden_test, vision_golden_test) do the same on
// their models.
#include "model/read_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "gpu/cpu.h"
#include "model/forward_pass.inl"
#include "model/ranks/part.h"
#include "model/support/golden.h"
#include "model/support/shapes.h"
#include "model/support/tuned_golden.h"

namespace troupe::model {
namespace {

/// Stands for a device: notes on how many rows the ops of each layer run.
struct LayerRows {
  std::vector<int> keys;      ///< by layer, of QkvRopeKvWrite
  std::vector<int> attended;  ///< by layer
  std::vector<int> finished;  ///< by layer: of the MLP or the experts
  std::vector<kernels::SequenceRows> last_sequences;
  int copied = 0;

  template <class Op>
  void note(const Op&) {}
  void note(const kernels::QkvRopeKvWrite& op) { keys.push_back(op.batch.rows); }
  void note(const kernels::Attention& op) { attended.push_back(op.batch.rows); }
  void note(const kernels::Mlp& op) { finished.push_back(op.rows); }
  void note(const kernels::Moe& op) { finished.push_back(op.rows); }
  void note(const kernels::MoeTail& op) {
    note(op.moe);
    if (op.next.weight.data != nullptr) note(op.next);
  }
  void note(const kernels::DenseTail& op) {
    EXPECT_EQ(op.attention_out.rows, op.mlp.rows);
    note(op.mlp);
    if (op.next.weight.data != nullptr) note(op.next);
  }
  void note(const kernels::CopyRows& op) { copied += op.count; }
};

/// Stands for the exchanges of ranks.
struct NoExchange {
  const Shard& shard() const { return place; }
  void clear(LayerRows&, float*, std::size_t) {}
  void all_reduce(LayerRows&, float*, float*, std::size_t numbers) { summed.push_back(numbers); }
  bool all_reduce(LayerRows&, float*, const kernels::AddRmsNorm& norm) {
    summed.push_back(kernels::numbers_in(norm));
    return false;
  }
  void all_gather(LayerRows&, const float*, std::size_t, float*, std::size_t, int, std::span<const int>) {}

  Shard place{.rank = 1, .ranks = 2};
  std::vector<std::size_t> summed;
};

}  // namespace
}  // namespace troupe::model

namespace troupe::kernels {

// Found by the forward pass, whose ops are of this namespace.
template <class Op>
void run(model::LayerRows& rows, const Op& op) {
  rows.note(op);
}

}  // namespace troupe::kernels

namespace troupe::model {
namespace {

View no_memory() { return {reinterpret_cast<void*>(std::uintptr_t{1} << 20), std::size_t{1} << 60}; }

LayerRows layer_rows(const ModelSpec& spec, int rows, std::optional<DeviceReads> reads,
                     NoExchange* ranks = nullptr) {
  const WeightFormats formats = DType::bf16;
  const WeightLayout weights = WeightLayout::make(spec, formats, true, no_memory());
  const Activations memory =
      Activations::make(spec, DType::bf16, {.rows = rows, .sequences = 8}, no_memory());
  LayerRows noted;
  ForwardPass<LayerRows, NoExchange>{noted, spec, DType::bf16, ranks, {}}.layers(
      {.weights = weights,
       .memory = memory,
       .kv = kv_shape(spec, formats),
       .batch = {.count = 2, .rows = rows},
       .reads = reads});
  return noted;
}

TEST(ReadRows, TheLastLayerFinishesThemAlone) {
  for (const ModelSpec& spec : {test::small_ernie(), test::large_mixture()}) {
    const auto layers = static_cast<std::size_t>(spec.layers);
    const std::vector<int> all(layers, 500);
    std::vector<int> few = all;
    few.back() = 3;

    const LayerRows whole = layer_rows(spec, 500, std::nullopt);
    EXPECT_EQ(whole.keys, all);
    EXPECT_EQ(whole.attended, all);
    EXPECT_EQ(whole.finished, all);
    EXPECT_EQ(whole.copied, 0);

    const LayerRows three = layer_rows(spec, 500, DeviceReads{.count = 3});
    EXPECT_EQ(three.keys, all) << "keys and values are those of all rows";
    EXPECT_EQ(three.attended, few);
    EXPECT_EQ(three.finished, few);
    EXPECT_EQ(three.copied, 3 * 3) << "queries, the residual stream, and that back";

    const LayerRows none = layer_rows(spec, 500, DeviceReads{});
    EXPECT_EQ(none.keys, all);
    EXPECT_EQ(none.attended, std::vector(layers - 1, 500));
    EXPECT_EQ(none.finished, none.attended);
  }
}

TEST(ReadRows, RanksExchangeThemAlone) {
  const auto spec = part_of(test::large_mixture(), {.rank = 1, .ranks = 2});
  ASSERT_TRUE(spec.ok());
  const auto summed = [&](std::optional<DeviceReads> reads) {
    NoExchange ranks;
    layer_rows(*spec, 500, reads, &ranks);
    return ranks.summed;
  };
  const std::size_t row = 2560, layers = 28;
  std::vector<std::size_t> expected(1 + 2 * layers, 500 * row);  // the embedding, attention and MLP
  EXPECT_EQ(summed(std::nullopt), expected);
  expected[2 * layers - 1] = expected[2 * layers] = 3 * row;
  EXPECT_EQ(summed(DeviceReads{.count = 3}), expected);
  expected.resize(2 * layers - 1);
  EXPECT_EQ(summed(DeviceReads{}), expected);
}

/// A step of 40 rows of one sequence and 60 of another, which begins at position 100.
struct FoundRows {
  bool find(std::size_t most = 8) { return found.find(batch, batch.sequences, most); }
  std::vector<std::int32_t> rows() const { return {found.rows().begin(), found.rows().end()}; }

  std::vector<BlockId> first{1, 2, 3}, second{4, 5, 6};
  StepBatch batch = [this] {
    StepBatch made;
    made.tokens.resize(100);
    made.sequences = {{first.data(), 0, 40, 0}, {second.data(), 100, 60, 40}};
    return made;
  }();
  ReadRows found;
};

TEST(ReadRows, AreThoseThatSampleOrAreScored) {
  FoundRows step;
  ASSERT_TRUE(step.find());
  EXPECT_EQ(step.found.count(), 0) << "a piece amid a prompt";
  step.batch.sample_rows = {39, 99};
  step.batch.score_rows = {40, 41, 99};
  ASSERT_TRUE(step.find());
  EXPECT_EQ(step.rows(), (std::vector<std::int32_t>{39, 40, 41, 99}));
  const auto expect = [&](std::size_t i, const std::vector<BlockId>& blocks, std::int32_t position) {
    const kernels::SequenceRows& read = step.found.sequences()[i];
    EXPECT_EQ(read.blocks, blocks.data());
    EXPECT_EQ(read.position, position);
    EXPECT_EQ(read.tokens, 1);
    EXPECT_EQ(read.row, static_cast<std::int32_t>(i));
  };
  expect(0, step.first, 39);
  expect(1, step.second, 100);
  expect(2, step.second, 101);
  expect(3, step.second, 159);
}

TEST(ReadRows, AreNotFoundWhereAllRowsHaveToRun) {
  FoundRows many;
  many.batch.sample_rows.resize(static_cast<std::size_t>(100 - ReadRows::kFewestSaved));
  std::iota(many.batch.sample_rows.begin(), many.batch.sample_rows.end(), 0);
  EXPECT_TRUE(many.find(100));
  EXPECT_FALSE(many.find(many.batch.sample_rows.size() - 1)) << "more than there is room for";
  many.batch.sample_rows.push_back(99);
  EXPECT_FALSE(many.find(100)) << "that saves too few";

  FoundRows sees;
  sees.batch.kinds.resize(100, kTextRow);
  sees.batch.kinds[98] = kVisionRow;
  sees.batch.sample_rows = {99};
  EXPECT_TRUE(sees.find());
  sees.batch.sample_rows = {98, 99};
  EXPECT_FALSE(sees.find()) << "its experts are others";

  FoundRows derives;
  derives.batch.sample_rows = {99};
  derives.batch.derived.push_back({});
  EXPECT_FALSE(derives.find()) << "the device knows where they stand";
}

WeightFormats few_bits(kernels::WeightKind kind, int group, kernels::KvFormat kv) {
  WeightFormats formats = DType::bf16;
  formats.attention = formats.mlp = formats.experts = {kind, DType::bf16, group};
  formats.kv = kv;
  return formats;
}

struct ReadCase {
  const char* name;
  const char* checkpoint;
  WeightFormats formats;
  int threads;
};

class ReadRowsOnCpu : public ::testing::TestWithParam<ReadCase> {
 protected:
  void SetUp() override {
    const ReadCase& c = GetParam();
    const auto files = open_model({.directory = test::golden_directory(c.checkpoint).string()});
    ASSERT_TRUE(files.ok()) << files.status().message;
    device_ = std::make_unique<Cpu>(CpuOptions{.threads = c.threads, .pin = false});
    auto weights = Weights<Cpu>::load(*device_, files->spec, c.formats, files->map);
    ASSERT_TRUE(weights.ok()) << weights.status().message;
    DecoderLimits limits = test::kGoldenLimits;
    limits.kv_format = c.formats.kv;
    kv_.resize(static_cast<std::size_t>(limits.kv_blocks) * kv_bytes_of(files->spec, c.formats) / 8 + 8);
    auto made =
        Decoder<Cpu>::make(*device_, files->spec, c.formats, std::move(*weights), limits, kv_memory());
    ASSERT_TRUE(made.ok()) << made.status().message;
    decoder_ = std::move(*made);
    golden_ = test::load_golden(c.checkpoint);
  }
  static std::size_t kv_bytes_of(const ModelSpec& spec, const WeightFormats& formats) {
    return kv_shape(spec, formats).block_bytes();
  }
  void* kv_memory() {
    const auto at = reinterpret_cast<std::uintptr_t>(kv_.data());
    return reinterpret_cast<void*>((at + 63) / 64 * 64);
  }
  std::vector<std::byte> kv_of(const std::vector<BlockId>& blocks) {
    const std::size_t bytes = decoder_->kv().block_bytes();
    std::vector<std::byte> all;
    for (const BlockId block : blocks) {
      const auto* at = static_cast<const std::byte*>(kv_memory()) + static_cast<std::size_t>(block) * bytes;
      all.insert(all.end(), at, at + bytes);
    }
    return all;
  }

  std::unique_ptr<Cpu> device_;
  std::vector<std::uint64_t> kv_;
  std::unique_ptr<Decoder<Cpu>> decoder_;
  test::Golden golden_;
};

TEST_P(ReadRowsOnCpu, KeepTheirBitsAndAllKeysAndValues) {
  const std::vector<float> all = test::logits_of(*decoder_, golden_);
  const std::vector<std::byte> expected = kv_of({6, 0, 3});
  test::check_read_rows(*decoder_, golden_, all, DType::bf16);
  test::logits_of(*decoder_, golden_, 0, 150, {});
  EXPECT_EQ(kv_of({1, 4, 5}), expected);
}

// A sequence that decodes beside a prompt of which some tokens are scored: the scores and what is sampled are
// those of a step that scores more than the last layer may leave alone.
TEST_P(ReadRowsOnCpu, SamplesAndScoresAreThoseOfTheWholeWay) {
  const std::vector<BlockId> decoding{1, 2, 4}, prompt{6, 0, 3};
  const auto step = [&](int scored) {
    StepBatch before;
    before.tokens.assign(golden_.ids.begin(), golden_.ids.begin() + 90);
    before.sequences = {{decoding.data(), 0, 90, 0}};
    decoder_->step(before, {}, {});
    StepBatch batch;
    batch.tokens = {golden_.ids[90]};
    batch.tokens.insert(batch.tokens.end(), golden_.ids.begin() + 20, golden_.ids.begin() + 140);
    batch.sequences = {{decoding.data(), 90, 1, 0}, {prompt.data(), 0, 120, 1}};
    batch.sample_rows = {0, 120};
    batch.samples.resize(2, {.temperature = 0, .logprobs = 20});
    batch.samples[1].logits_row = 1;
    for (int i = 0; i < scored; ++i) {
      batch.scores.push_back(
          {.logits_row = i, .token = golden_.ids[static_cast<std::size_t>(i)], .logprobs = 20});
      batch.score_rows.push_back(1 + i);
    }
    std::vector<kernels::SampleResult> samples(2), scores(batch.scores.size());
    decoder_->step(batch, samples, scores);
    scores.resize(3);
    samples.insert(samples.end(), scores.begin(), scores.end());
    return samples;
  };
  const auto whole = step(50), few = step(3);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(few[i].token, whole[i].token) << i;
    EXPECT_EQ(few[i].logprob, whole[i].logprob) << i;
    ASSERT_EQ(few[i].top_count, 20);
    for (int t = 0; t < 20; ++t) {
      EXPECT_EQ(few[i].top[t].token, whole[i].top[t].token) << i;
      EXPECT_EQ(few[i].top[t].logprob, whole[i].top[t].logprob) << i;
    }
  }
}

// What static scales are made of: the experts' largest inputs, also in steps that read no row.
TEST(ReadRows, StatisticsAreThoseOfEveryRow) {
  const auto spec = read_spec(test::tuned_directory("moe_gqa5"));
  ASSERT_TRUE(spec.ok()) << spec.status().message;
  Cpu device({.threads = 2, .pin = false});
  auto weights = Weights<Cpu>::dummy(device, *spec, DType::bf16, 1);
  ASSERT_TRUE(weights.ok()) << weights.status().message;
  auto decoder = Decoder<Cpu>::make(device, *spec, DType::bf16, std::move(*weights),
                                    {.rows = 64, .sequences = 2, .positions = 64, .kv_blocks = 1});
  ASSERT_TRUE(decoder.ok()) << decoder.status().message;
  const auto experts = static_cast<std::size_t>(spec->layers * spec->experts);
  const std::vector<BlockId> blocks{0};
  StepBatch batch;
  batch.tokens.resize(64);
  std::iota(batch.tokens.begin(), batch.tokens.end(), 100);
  batch.sequences = {{blocks.data(), 0, 64, 0}};
  const auto largest = [&](const std::vector<std::int32_t>& reads) {
    std::vector<float> all(2 * experts), logits(reads.size() * static_cast<std::size_t>(spec->vocab));
    (*decoder)->observe({.gate_up = all.data(), .down = all.data() + experts});
    batch.sample_rows = reads;
    (*decoder)->logits(batch, logits);
    return all;
  };
  const std::vector<float> whole = largest({0, 1, 63});  // more rows than the last layer finishes alone
  const auto last = whole.begin() + (spec->layers - 1) * spec->experts;
  EXPECT_GT(std::count_if(last, last + spec->experts, [](float x) { return x > 0; }), spec->experts / 2);
  EXPECT_EQ(largest({}), whole);
}

using kernels::KvFormat;
using kernels::WeightKind;

INSTANTIATE_TEST_SUITE_P(
    All, ReadRowsOnCpu,
    ::testing::Values(
        ReadCase{"dense", "gqa3_tied", DType::bf16, 1},
        ReadCase{"dense_threads", "gqa8_tied", DType::bf16, 3},
        ReadCase{"dense_int8", "gqa3_tied", few_bits(WeightKind::int8, 0, KvFormat::int8), 2},
        ReadCase{"dense_groups", "gqa5_untied", few_bits(WeightKind::int4, 64, KvFormat::fp8), 2},
        ReadCase{"mixture", "moe_shared2", DType::bf16, 2},
        ReadCase{"mixture_int4", "moe_interval", few_bits(WeightKind::int4, 0, KvFormat::fp8), 3},
        ReadCase{"mixture_int8", "moe_end", few_bits(WeightKind::int8, 0, KvFormat::int8), 2}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace troupe::model
