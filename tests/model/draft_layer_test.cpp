// The draft layer: its bits do not depend on how a prompt is cut, on neighbours, on blocks or on
// what rejected and chained tokens have left in KV memory; quantised weights and KV; several ranks. Cases on
// the CPU; cuda_draft_layer_test.cpp names those on a GPU.
#include <unistd.h>

#include <cstring>
#include <thread>

#include "gpu/cpu.h"
#include "model/draft_layer.h"
#include "model/ranks/part.h"
#include "model/support/cut_checkpoint.h"
#include "model/support/draft_layer.h"
#include "model/weight_target.h"

namespace troupe::model {
namespace {

using test::after;
using test::DraftGolden;
using test::DraftLayer;
using test::DraftLayerCase;
using test::DraftQuantisation;
using test::DraftSequence;
using test::QuantisedDraft;
using test::run_layers;

constexpr test::DraftDevice kCpu{config::Device::cpu, [] { return Status{}; },
                                 [](const ModelFiles& files) {
                                   return test::DraftDecoderOn<Cpu>::make(
                                       std::make_shared<Cpu>(CpuOptions{.threads = 2, .pin = false}), files);
                                 }};

INSTANTIATE_TEST_SUITE_P(Kv, DraftLayer,
                         ::testing::Values(DraftLayerCase{&kCpu, kernels::KvFormat::plain},
                                           DraftLayerCase{&kCpu, kernels::KvFormat::int8},
                                           DraftLayerCase{&kCpu, kernels::KvFormat::fp8}),
                         test::draft_layer_name);

TEST_P(DraftLayer, ChunksGiveTheBitsOfOneChunk) {
  const std::vector<float> expected = straight(79);
  for (const std::vector<std::int32_t>& chunks :
       {std::vector{13, 40, 26}, std::vector{64, 15}, std::vector{1, 78}, std::vector{63, 1, 1, 14}}) {
    DraftSequence cut = sequence();
    std::vector<float> logits;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      logits = run(cut, chunks[i], i > 0, i + 1 == chunks.size());
    }
    EXPECT_EQ(logits, expected) << chunks.size() << " chunks from " << chunks[0];
  }
  // A chunk that drafts has filled the slot behind it, so that the next is not carried.
  DraftSequence drafted = sequence();
  run(drafted, 30, false, true);
  EXPECT_EQ(run(drafted, 49, false, true), expected);
}

TEST_P(DraftLayer, ARowThatIsNotCarriedIsMissed) {
  const std::vector<float> expected = straight(79);
  DraftSequence cut = sequence();
  run(cut, 30, false, false);
  EXPECT_NE(run(cut, 49, false, true), expected);
}

TEST_P(DraftLayer, TheLastHiddenRowMovesBetweenSlots) {
  const std::vector<float> expected = straight(79);
  DraftSequence moved = sequence(2);
  run(moved, 30, false, false);
  std::vector<std::byte> row(decoder_->hidden_bytes());
  decoder_->save_hidden(2, row);
  DraftSequence other = sequence(2, {1, 2, 4});
  run(other, 20, false, false);  // overwrites what slot 2 keeps
  decoder_->load_hidden(5, row);
  moved.slot = 5;
  EXPECT_EQ(run(moved, 49, true, true), expected);
}

// Another sequence takes over the first block, or a copy of it, as from the prefix cache: the hidden row
// before its first own position lies in the block.
TEST_P(DraftLayer, ABlockOfAnotherSequenceIsAllThatIsNeeded) {
  const std::vector<float> expected = straight(79);
  for (const bool cut : {false, true}) {
    DraftSequence first = sequence(1, {6, 5});
    if (cut) run(first, 60, false, true);
    run(first, cut ? 6 : 70, false, true);
    const kernels::BlockPair pair{.from = 6, .to = 2};
    decoder_->copy_blocks({&pair, 1});
    for (const BlockId block : {6, 2}) {
      DraftSequence second = sequence(4, {block, 1});
      second.done = 64;
      EXPECT_EQ(run(second, 15, true, true), expected) << block << cut;
    }
  }
}

TEST_P(DraftLayer, NeighboursAndTheirOrderChangeNoBit) {
  const std::vector<float> expected = straight(79);
  DraftSequence longer = sequence(1, {5, 7, 2});
  std::reverse(longer.ids.begin(), longer.ids.end());
  for (const bool first : {true, false}) {
    decoder_ = make();
    DraftSequence own = sequence(), other = longer;
    for (const std::int32_t count : {33, 46}) {
      const bool last = count == 46;
      StepBatch batch;
      if (first) own.add_to(batch, count);
      other.add_to(batch, 20);
      if (!first) own.add_to(batch, count);
      run_layers(*decoder_, batch);
      std::vector<DraftRows> rows{after(own, count, last ? own.next() : kNoToken, first ? 0 : 1),
                                  after(other, 20, other.next(), first ? 1 : 0)};
      rows[0].carried = last;
      if (!first) std::swap(rows[0], rows[1]);
      std::vector<float> logits((last ? 2 : 1) * vocab());
      auto results = test::results_of(last ? 2 : 1);
      decoder_->draft_rows(batch, rows, results, logits);
      if (!last) continue;
      const auto begin = logits.begin() + (first ? 0 : static_cast<std::ptrdiff_t>(vocab()));
      EXPECT_EQ(std::vector(begin, begin + static_cast<std::ptrdiff_t>(vocab())), expected);
    }
  }
}

// Verification: the sequence's rows are a token and three drafts, of which two are wrong.
TEST_P(DraftLayer, RejectedRowsLeaveNoTrace) {
  const std::vector<float> expected = straight(79);
  DraftSequence verified = sequence();
  run(verified, 40, false, true);
  const std::vector<TokenId> right = verified.ids;
  verified.ids[42] = verified.ids[43] = 7;
  StepBatch batch;
  verified.add_to(batch, 4);
  run_layers(*decoder_, batch);
  verified.ids = right;
  verified.done = 42;
  const DraftRows rows = after(verified, 2, verified.next());
  auto results = test::results_of(1);
  decoder_->draft_rows(batch, {&rows, 1}, results);
  const DraftAgain again[] = {{.of = 0, .token = 9, .sample = {.temperature = 0}}};
  decoder_->draft_again(again, results);
  EXPECT_EQ(run(verified, 37, false, true), expected);
}

// Blocks come from another sequence: what lies in slot 0 is its 65th token.
TEST_P(DraftLayer, UsedBlocksChangeNoBit) {
  const std::vector<float> expected = straight(79);
  DraftSequence before = sequence(1, {0, 6, 3});
  std::reverse(before.ids.begin(), before.ids.end());
  run(before, 79, false, true);
  DraftSequence own = sequence();
  EXPECT_EQ(run(own, 79, false, true), expected);
}

// Every prefix of the prompt as if only its rows had been accepted, from one step; and the runs behind it.
TEST_P(DraftLayer, AllPrefixesOfOneStep) {
  DraftSequence whole = sequence();
  StepBatch batch;
  whole.add_to(batch, 79);
  run_layers(*decoder_, batch);
  std::vector<float> logits[3];
  for (std::int32_t rows = 1; rows < 80; ++rows) {
    const DraftRows draft = after(whole, rows, golden_.ids[static_cast<std::size_t>(rows)]);
    test::draft_three(*decoder_, batch, {&draft, 1}, golden_, {&rows, 1}, logits);
  }
  // Codes of 8 bits are coarser than bf16.
  test::check_draft(logits, golden_, GetParam().kv == kernels::KvFormat::plain ? 1e-4 : 0.1);
  decoder_ = make();
  std::vector<float> single[3];
  test::draft_token_by_token(*decoder_, golden_, single);
  for (int run = 0; run < 3; ++run) EXPECT_EQ(single[run], logits[run]) << run;
}

TEST_P(DraftLayer, SeveralSequencesChainOnOrStop) {
  DraftSequence a = sequence(0, {1, 2}), b = sequence(3, {4, 5}), c = sequence(6, {7, 0});
  std::reverse(b.ids.begin(), b.ids.end());
  const auto run_three = [&](bool all) {
    decoder_ = make();
    StepBatch batch;
    std::vector<DraftRows> rows;
    for (DraftSequence* one : {&a, &b, &c}) {
      one->done = 0;
      one->add_to(batch, 20 + static_cast<std::int32_t>(one->slot));
      rows.push_back(after(*one, 20 + static_cast<std::int32_t>(one->slot), one->next(),
                           static_cast<std::int32_t>(rows.size())));
    }
    run_layers(*decoder_, batch);
    auto results = test::results_of(3);
    decoder_->draft_rows(batch, rows, results);
    std::vector<DraftAgain> again;
    for (std::int32_t i = 2; i >= 0; --i) {
      if (all || i != 1) again.push_back({i, results[static_cast<std::size_t>(i)].token, {.temperature = 0}});
    }
    std::vector<float> logits(again.size() * vocab());
    auto more = test::results_of(again.size());
    decoder_->draft_again(again, more, logits);
    if (all)
      logits.erase(logits.begin() + static_cast<std::ptrdiff_t>(vocab()),
                   logits.begin() + 2 * static_cast<std::ptrdiff_t>(vocab()));
    return logits;
  };
  EXPECT_EQ(run_three(true), run_three(false));
}

TEST_P(DraftLayer, SamplesWithTheGivenRow) {
  Cpu cpu({.threads = 1, .pin = false});
  DraftSequence own = sequence();
  StepBatch batch;
  own.add_to(batch, 30);
  run_layers(*decoder_, batch);
  for (std::uint32_t position = 0; position < 8; ++position) {
    const kernels::SampleRow sample{.temperature = 1.5f, .top_p = 0.9f, .seed = 5, .position = position};
    DraftRows rows = after(own, 30, own.next());
    rows.sample = sample;
    std::vector<float> logits(vocab());
    auto results = test::results_of(1), expected = test::results_of(1);
    decoder_->draft_rows(batch, {&rows, 1}, results, logits);
    logits.resize(static_cast<std::size_t>(kernels::padded(files_.spec.vocab)));
    kernels::run(cpu, kernels::Sample{.results = expected.data(),
                                      .rows = &sample,
                                      .logits = logits.data(),
                                      .count = 1,
                                      .vocab = files_.spec.vocab,
                                      .stride = kernels::padded(files_.spec.vocab)});
    EXPECT_EQ(results[0].token, expected[0].token);
  }
}

TEST_P(DraftLayer, WithoutTheLayerNothingIsReserved) {
  ModelSpec plain = files_.spec;
  plain.draft_layers = 0;
  const WeightFormats formats(DType::bf16);
  const auto bytes = [&](const ModelSpec& spec) {
    return Activations::make(spec, DType::bf16, test::kGoldenLimits, {});
  };
  EXPECT_EQ(bytes(plain).hidden, nullptr);
  EXPECT_LT(bytes(plain).bytes, bytes(files_.spec).bytes);
  EXPECT_LT(WeightLayout::make(plain, formats, true, {}).bytes,
            WeightLayout::make(files_.spec, formats, true, {}).bytes);
  // Two layers become three; 48 columns are padded to 64.
  EXPECT_EQ(kv_shape(files_.spec, formats).block_bytes() * 2,
            kv_shape(plain, formats).block_bytes() * 3 + 2 * 64 * 2);
  EXPECT_EQ(kv_bytes_per_token(files_.spec, formats) * 2, kv_bytes_per_token(plain, formats) * 3);
}

// ---- Weights in fewer bits

TEST_P(QuantisedDraft, IsCloseToTheReference) {
  const DraftQuantisation& which = GetParam();
  config::SpeculationOptions speculation =
      test::with_draft(test::golden_directory(std::string("draft_") + which.model));
  speculation.quantization = which.draft;
  auto files = test::open_with_draft(which.model, speculation);
  ASSERT_TRUE(files.ok()) << files.status().message;
  const Status chosen = files->choose(which.on->device, {.method = which.method});
  ASSERT_TRUE(chosen.ok()) << chosen.message;
  EXPECT_TRUE(files->formats.draft.quantised());
  const auto decoder = which.on->make(*files);
  ASSERT_TRUE(decoder.ok()) << decoder.status().message;
  const DraftGolden golden = test::load_draft_golden(which.model);
  std::vector<float> logits[3];
  test::draft_token_by_token(**decoder, golden, logits);
  test::check_draft(logits, golden, which.tolerance);
}

INSTANTIATE_TEST_SUITE_P(All, QuantisedDraft,
                         ::testing::Values(DraftQuantisation{&kCpu, "gqa3_tied", "", "wint8", 0.05},
                                           DraftQuantisation{&kCpu, "gqa3_tied", "wint8", "", 0.1},
                                           DraftQuantisation{&kCpu, "gqa5_untied", "", "wint8", 0.05},
                                           DraftQuantisation{&kCpu, "gqa5_untied", "", "wint4", 0.35},
                                           DraftQuantisation{&kCpu, "moe_shared2", "wint8", "wint4", 0.35}),
                         test::draft_quantisation_name);

TEST(DraftFormat, TheFormatFollowsTheModelOrTheField) {
  const auto draft_format_of = [](const char* model, const char* method, const char* draft) {
    config::SpeculationOptions speculation =
        test::with_draft(test::golden_directory(std::string("draft_") + model));
    speculation.quantization = draft;
    auto files = test::open_with_draft(model, speculation);
    EXPECT_TRUE(files.ok() && files->choose(config::Device::cpu, {.method = method}).ok());
    return files->formats.draft;
  };
  EXPECT_EQ(draft_format_of("gqa3_tied", "", ""), kernels::WeightFormat(DType::f32));
  EXPECT_EQ(draft_format_of("gqa3_tied", "wint8", "").kind, kernels::WeightKind::int8);
  EXPECT_EQ(draft_format_of("gqa3_tied", "", "wint4").kind, kernels::WeightKind::int4);
  // Outside of the experts wint4 is wint8; what the field says is of this layer.
  EXPECT_EQ(draft_format_of("moe_shared2", "wint4", "").kind, kernels::WeightKind::int8);
  EXPECT_EQ(draft_format_of("moe_shared2", "wint4", "wint4").kind, kernels::WeightKind::int4);
}

// ---- Ranks

struct RankedDraft {
  const char* model;
  int ranks;
  bool expert_parallel;
  bool cut = false;  ///< each rank has a folder of its own in the checkpoint
};

class DraftRanks : public ::testing::TestWithParam<std::tuple<RankedDraft, DType>> {};

TEST_P(DraftRanks, EveryRankHasTheReferencesLogits) {
  const auto& [which, dtype] = GetParam();
  const DraftGolden golden = test::load_draft_golden(which.model);
  const auto files = test::open_with_draft(which.model);
  ASSERT_TRUE(files.ok()) << files.status().message;
  test::TempDirectory folders;
  if (which.cut)
    test::cut_for_ranks(*files, test::golden_directory(which.model), folders.path(), which.ranks);
  const auto memory = create_rank_memory(which.ranks);
  ASSERT_TRUE(memory.ok());
  struct Rank {
    std::vector<float> logits[3];
    Status status;
  };
  std::vector<Rank> all(static_cast<std::size_t>(which.ranks));
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < all.size(); ++r) {
      threads.emplace_back([&, r, dtype = dtype, which = which] {
        const Shard shard{static_cast<int>(r), which.ranks, which.expert_parallel};
        Cpu device({.threads = 1, .pin = false});
        auto ranks = Collective<Cpu>::attach(*memory, shard);
        Result<ModelFiles> folder = invalid("the checkpoint is whole");
        if (which.cut)
          folder = open_model({.directory = folders.path().string()}, shard, test::with_draft({}));
        const Result<ModelFiles>& own = which.cut ? folder : files;
        if (!own) return void(all[r].status = own.status());
        const auto spec = part_of(own->spec, shard);
        const auto map = own->map_of(shard);
        for (const Status& s : {ranks.status(), spec.status(), map.status()}) {
          if (!s.ok()) all[r].status = s;
        }
        if (!all[r].status.ok()) return;
        const auto decoder = test::make_decoder(device, *spec, dtype, *map, ranks->get());
        if (!decoder) return void(all[r].status = decoder.status());
        test::draft_token_by_token(**decoder, golden, all[r].logits);
      });
    }
  }
  ::close(*memory);
  for (const Rank& rank : all) {
    ASSERT_TRUE(rank.status.ok()) << rank.status.message;
    for (int run = 0; run < 3; ++run) EXPECT_EQ(rank.logits[run], all[0].logits[run]) << run;
  }
  test::check_draft(all[0].logits, golden, test::kTolerance[static_cast<int>(dtype)]);
}

std::string draft_rank_name(const ::testing::TestParamInfo<DraftRanks::ParamType>& info) {
  const auto& [which, dtype] = info.param;
  return std::string(which.model) + "_" + to_string(dtype) + (which.expert_parallel ? "_experts" : "") +
         (which.cut ? "_cut" : "");
}

INSTANTIATE_TEST_SUITE_P(All, DraftRanks,
                         ::testing::Combine(::testing::Values(RankedDraft{"gqa3_tied", 2, false},
                                                              RankedDraft{"moe_shared2", 2, false},
                                                              RankedDraft{"moe_shared2", 2, true},
                                                              RankedDraft{"gqa3_tied", 2, false, true}),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         draft_rank_name);

// Drawn weights are the same whether one rank holds them or two.
TEST(DummyDraft, WeightsOfRanksAreTheModels) {
  ModelSpec spec = *read_spec(test::golden_directory("gqa3_tied"));
  spec.draft_layers = 1;
  Cpu device({.threads = 2, .pin = false});
  const auto whole = Weights<Cpu>::dummy(device, spec, DType::f32, 3);
  ASSERT_TRUE(whole.ok());
  const auto floats = [](const kernels::Matrix& m) {
    return std::span(static_cast<const float*>(m.data), 64);
  };
  const auto first = floats(whole->layout().draft.projection);
  EXPECT_TRUE(std::ranges::any_of(first, [](float f) { return f != 0; }));
  EXPECT_FALSE(std::ranges::equal(first, floats(whole->layout().layers[0].qkv)));
  EXPECT_FALSE(
      std::ranges::equal(floats(whole->layout().draft.block.qkv), floats(whole->layout().layers[0].qkv)));
  for (int rank = 0; rank < 2; ++rank) {
    const auto part = Weights<Cpu>::dummy(device, spec, DType::f32, 3, {rank, 2, false});
    ASSERT_TRUE(part.ok());
    EXPECT_TRUE(std::ranges::equal(first, floats(part->layout().draft.projection))) << rank;
  }
}

}  // namespace
}  // namespace troupe::model
