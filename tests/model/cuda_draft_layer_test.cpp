// The draft layer on a GPU: the goldens, the cases of draft_layer_test.cpp, ranks, and shapes that take the
// tuned kernels, whose logits are compared with the CPU's.
#include <cmath>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "gpu/cuda.h"
#include "model/ranks/part.h"
#include "model/support/cuda_party.h"
#include "model/support/draft_layer.h"
#include "model/support/tuned_golden.h"

namespace troupe::model {
namespace {

using kernels::KvFormat;
using kernels::WeightFormat;
using kernels::WeightKind;
using test::DraftGolden;
using test::DraftLayer;
using test::DraftLayerCase;
using test::DraftQuantisation;
using test::DraftSequence;
using test::QuantisedDraft;

/// One for all tests: a context takes half a second to make.
std::shared_ptr<Cuda> invariant_gpu() {
  static const auto gpu = std::make_shared<Cuda>(CudaOptions{.batch_invariant = true});
  return gpu;
}

constexpr test::DraftDevice kGpu{
    config::Device::cuda, [] { return cuda_usable(); },
    [](const ModelFiles& files) { return test::DraftDecoderOn<Cuda>::make(invariant_gpu(), files); }};

INSTANTIATE_TEST_SUITE_P(CudaKv, DraftLayer,
                         ::testing::Values(DraftLayerCase{&kGpu, KvFormat::plain},
                                           DraftLayerCase{&kGpu, KvFormat::int8},
                                           DraftLayerCase{&kGpu, KvFormat::fp8}),
                         test::draft_layer_name);

INSTANTIATE_TEST_SUITE_P(Cuda, QuantisedDraft,
                         ::testing::Values(DraftQuantisation{&kGpu, "gqa3_tied", "", "wint8", 0.05},
                                           DraftQuantisation{&kGpu, "gqa3_tied", "wint8", "", 0.1},
                                           DraftQuantisation{&kGpu, "gqa3_tied", "", "block_wise_fp8", 0.2},
                                           DraftQuantisation{&kGpu, "gqa5_untied", "", "wint8", 0.05},
                                           DraftQuantisation{&kGpu, "gqa5_untied", "", "wint4", 0.35},
                                           DraftQuantisation{&kGpu, "moe_shared2", "wint8", "wint4", 0.35}),
                         test::draft_quantisation_name);

class CudaDraftGoldens : public ::testing::TestWithParam<std::tuple<const char*, DType, bool>> {};

TEST_P(CudaDraftGoldens, EqualTheReference) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  const auto [name, dtype, invariant] = GetParam();
  Cuda device({.batch_invariant = invariant});
  test::check_draft_golden(device, name, dtype);
}

INSTANTIATE_TEST_SUITE_P(All, CudaDraftGoldens,
                         ::testing::Combine(::testing::ValuesIn(test::kDraftCases),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) ? "_invariant" : "");
                         });

TEST(CudaDraftNorms, LeaveANormOut) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  for (const char* model : test::kDraftCases) test::check_draft_norms(*invariant_gpu(), model);
}

// ---- Ranks

/// Of a step with all 79 rows, drafts behind so many of them.
constexpr std::int32_t kPrefixes[] = {5, 64, 79};

/// The logits of three runs behind each prefix.
std::vector<float> draft_prefixes(Decoder<Cuda>& decoder, const DraftGolden& golden) {
  DraftSequence whole{golden.ids, {6, 0, 3}, 5};
  StepBatch batch;
  whole.add_to(batch, 79);
  test::run_layers(decoder, batch);
  std::vector<float> logits[3];
  for (const std::int32_t rows : kPrefixes) {
    const DraftRows draft = test::after(whole, rows, golden.ids[static_cast<std::size_t>(rows)]);
    test::draft_three(decoder, batch, {&draft, 1}, golden, {&rows, 1}, logits);
  }
  for (const int run : {1, 2}) logits[0].insert(logits[0].end(), logits[run].begin(), logits[run].end());
  return logits[0];
}

TEST(CudaDraftRanks, DISABLED_Rank) {
  const test::RankProcess process = test::RankProcess::mine();
  std::istringstream words(process.what);
  std::string model;
  int dtype = 0;
  words >> model >> dtype;
  const DraftGolden golden = test::load_draft_golden(model);
  const auto files = test::open_with_draft(model);
  ASSERT_TRUE(files.ok()) << files.status().message;
  test::Party party(process);
  const auto spec = part_of(files->spec, party.shard);
  const auto map = files->map_of(party.shard);
  ASSERT_TRUE(spec.ok() && map.ok());
  const auto decoder =
      test::make_decoder(party.device, *spec, static_cast<DType>(dtype), *map, party.ranks.get());
  ASSERT_TRUE(decoder.ok()) << decoder.status().message;
  (void)draft_prefixes(**decoder, golden);  // alone: the numbers mean nothing, and must leave nothing behind
  ASSERT_TRUE(party.join());
  process.answer(draft_prefixes(**decoder, golden));
  party.device.sync();
}

struct RankedDraft {
  const char* model;
  bool expert_parallel;
};

class CudaDraftRankGoldens : public ::testing::TestWithParam<std::tuple<RankedDraft, DType>> {};

TEST_P(CudaDraftRankGoldens, EveryRankHasTheReferencesLogits) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  const auto& [which, dtype] = GetParam();
  const auto logits = test::run_ranks<float>("CudaDraftRanks.DISABLED_Rank", 2, which.expert_parallel,
                                             std::string(which.model) + " " + std::to_string(int(dtype)));
  EXPECT_EQ(logits[0], logits[1]);
  const DraftGolden golden = test::load_draft_golden(which.model);
  const std::size_t all = golden.ids.size() - 1, vocab = golden.logits.size() / 3 / all;
  std::vector<float> expected;
  for (std::size_t run = 0; run < 3; ++run) {
    for (const std::int32_t rows : kPrefixes) {
      const auto row = golden.logits.begin() +
                       static_cast<std::ptrdiff_t>((run * all + static_cast<std::size_t>(rows) - 1) * vocab);
      expected.insert(expected.end(), row, row + static_cast<std::ptrdiff_t>(vocab));
    }
  }
  ASSERT_EQ(logits[0].size(), expected.size());
  EXPECT_LE(test::draft_error(logits[0], expected), test::kTolerance[static_cast<int>(dtype)]);
}

INSTANTIATE_TEST_SUITE_P(All, CudaDraftRankGoldens,
                         ::testing::Combine(::testing::Values(RankedDraft{"gqa3_tied", false},
                                                              RankedDraft{"moe_shared2", false},
                                                              RankedDraft{"moe_shared2", true}),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) {
                           const RankedDraft& which = std::get<0>(info.param);
                           return std::string(which.model) + "_" + to_string(std::get<1>(info.param)) +
                                  (which.expert_parallel ? "_experts" : "");
                         });

// ---- Tuned kernels

/// Chunks, then steps of which some rows are rejected, then one row each; logits of two runs behind each. The
/// model's weights are drawn, the same on every device.
template <Device D>
std::vector<float> drafts_of(D& device, const ModelSpec& spec, const WeightFormats& formats) {
  auto weights = Weights<D>::dummy(device, spec, formats, 1);
  if (!weights) throw std::runtime_error(weights.status().message);
  const DecoderLimits limits{
      .rows = 512, .sequences = 8, .positions = 512, .kv_blocks = 16, .kv_format = formats.kv};
  const auto decoder = Decoder<D>::make(device, spec, formats, std::move(*weights), limits);
  if (!decoder) throw std::runtime_error(decoder.status().message);
  std::vector<TokenId> ids(400);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<TokenId>((i * 7919 + 13) % static_cast<std::size_t>(spec.vocab));
  }
  DraftSequence sequences[] = {{ids, {9, 1, 2, 3, 4, 5}, 3}, {ids, {6, 7}, 0}, {ids, {8}, 7}};
  const auto vocab = static_cast<std::size_t>(spec.vocab);
  std::vector<float> all;
  struct Rows {
    std::int32_t run, accepted;
  };
  const Rows steps[][3] = {
      {{300, 300}, {40, 40}, {1, 1}}, {{2, 1}, {2, 2}, {3, 1}}, {{1, 1}, {1, 1}, {1, 1}}};
  for (const auto& step : steps) {
    StepBatch batch;
    std::vector<DraftRows> rows;
    for (std::size_t s = 0; s < 3; ++s) {
      sequences[s].add_to(batch, step[s].run);
      sequences[s].done -= step[s].run - step[s].accepted;
      rows.push_back(test::after(sequences[s], step[s].accepted, sequences[s].next(), std::int32_t(s)));
    }
    test::run_layers(**decoder, batch);
    std::vector<float> logits(3 * vocab);
    auto results = test::results_of(3);
    (*decoder)->draft_rows(batch, rows, results, logits);
    all.insert(all.end(), logits.begin(), logits.end());
    std::vector<DraftAgain> again;
    for (std::int32_t s = 0; s < 3; ++s) again.push_back({s, ids[std::size_t(350 + s)], {.temperature = 0}});
    (*decoder)->draft_again(again, results, logits);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

double relative_rms(const std::vector<float>& values, const std::vector<float>& reference) {
  double difference = 0, sum = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double d = static_cast<double>(values[i]) - reference[i];
    difference += d * d;
    sum += static_cast<double>(reference[i]) * reference[i];
  }
  return std::sqrt(difference / sum);
}

struct TunedDraft {
  const char* name;
  WeightFormat draft = DType::bf16;
  KvFormat kv = KvFormat::plain;
};

class CudaTunedDrafts : public ::testing::TestWithParam<std::tuple<const char*, TunedDraft>> {};

// Both devices' errors, of their roundings and of the codes, against fp32 on the CPU.
TEST_P(CudaTunedDrafts, AreAsCloseAsTheCpus) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  const auto& [shape, which] = GetParam();
  auto spec = read_spec(test::tuned_directory(shape));
  ASSERT_TRUE(spec.ok()) << spec.status().message;
  spec->draft_layers = 1;
  Cpu cpu({.threads = 8, .pin = false});
  const std::vector<float> reference = drafts_of(cpu, *spec, DType::f32);
  WeightFormats formats = DType::bf16;
  formats.draft = which.draft;
  formats.kv = which.kv;
  const bool fp8 = which.draft.fp8();
  if (fp8 && !Cuda().features().wgmma) GTEST_SKIP() << "fp8 needs a Hopper GPU";
  WeightFormats comparable = formats;
  if (fp8) comparable.draft = WeightFormat{WeightKind::int4, DType::bf16, 64};  // the CPU has no fp8
  const double theirs = relative_rms(drafts_of(cpu, *spec, comparable), reference);
  for (const bool invariant : {false, true}) {
    Cuda device({.batch_invariant = invariant});
    const double ours = relative_rms(drafts_of(device, *spec, formats), reference);
    std::printf("%s %s%s: relative rms error %.5f, the CPU's %.5f\n", shape, which.name,
                invariant ? ", batch-invariant" : "", ours, theirs);
    EXPECT_LE(ours, 1.5 * theirs);  // few rows, and a mixture may choose another expert in one
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaTunedDrafts,
    ::testing::Combine(::testing::ValuesIn(test::kTunedShapes),
                       ::testing::Values(TunedDraft{"bf16"},
                                         TunedDraft{.name = "kv_int8", .kv = KvFormat::int8},
                                         TunedDraft{.name = "kv_fp8", .kv = KvFormat::fp8},
                                         TunedDraft{"wint8", {WeightKind::int8, DType::bf16}},
                                         TunedDraft{"wint4", {WeightKind::int4, DType::bf16}},
                                         TunedDraft{"wint4_groups", {WeightKind::int4, DType::bf16, 64}},
                                         TunedDraft{"fp8", {WeightKind::fp8, DType::bf16}})),
    [](const auto& info) {
      return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param).name;
    });

}  // namespace
}  // namespace troupe::model
