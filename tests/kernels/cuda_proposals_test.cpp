// Draft tokens that a result says for the next row, and rows that verify them behind masks.
#include <algorithm>

#include "kernels/derived_rows.h"
#include "kernels/device_under_test.h"

namespace troupe::kernels {
namespace {

constexpr std::int32_t kIdsToNext = 80;
constexpr std::size_t kProposalSlots = 3;

using Ids = std::vector<TokenId>;

class Proposals : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    cuda_ = &shared_cuda(false);
    device_ = std::make_unique<DeviceUnderTest>(*cuda_);
    states_.resize(kProposalSlots);
    before_.resize(kProposalSlots);
    before_[kSlot] = {2, 0, {70, 71}};
  }
  void TearDown() override { device_.reset(); }

  static constexpr std::int32_t kSlot = 1;

  /// The slot's sequence, whose last id was just sampled.
  void set_ids(const Ids& ids) {
    Ids memory(4 * kIdsToNext, -7);
    std::copy(ids.begin(), ids.end() - 1, memory.begin() + 3 * kIdsToNext);
    block_ids_ = device_->put(memory);
    blocks_ = device_->put(std::vector<BlockId>{0, 0, 3, 2, 0, 0});  // two for each slot
    sampled_ = device_->put(Ids{0, ids.back(), 0});
    known_ = static_cast<std::int32_t>(ids.size());
  }

  /// Of a sequence whose row the host has made, or that has yielded so many tokens of a row.
  Proposal propose(ProposingSequence one, int yielded = -1, SampleError error = SampleError::none) {
    one.slot = kSlot;
    if (one.max_tokens == 0) one.max_tokens = 100;
    if (yielded >= 0) one.derived = 0;
    states_[kSlot].known = yielded >= 0 ? known_ : 0;
    Proposal* const proposals = device_->put(before_);
    SampleResult result;
    result.error = error;
    run(*cuda_, ProposeDrafts{.sequences = device_->put(std::vector<ProposingSequence>{{}, one}),
                              .count = 2,
                              .states = device_->put(states_),
                              .sampled = sampled_,
                              .blocks = blocks_,
                              .blocks_per_slot = 2,
                              .block_ids = block_ids_,
                              .ids_to_next_block = kIdsToNext,
                              .samples = device_->put(
                                  std::vector<SampleRow>{{.known_tokens = yielded >= 0 ? 0 : known_ - 1}}),
                              .results = device_->put(std::vector<SampleResult>{result}),
                              .yields = device_->put(std::vector<Yield>{{std::max(0, yielded), 0, 0}}),
                              .source = {.predictions = {device_->put(predictions_), 4},
                                         .shortest_ngram = 2,
                                         .longest_ngram = 5},
                              .proposals = proposals});
    Proposal got;
    device_->download(&got, proposals + kSlot, sizeof got);
    return got;
  }
  static Ids ids_of(const Proposal& proposal) { return {proposal.ids, proposal.ids + proposal.count}; }

  Cuda* cuda_ = nullptr;
  std::unique_ptr<DeviceUnderTest> device_;
  std::vector<SlotState> states_;
  std::vector<Proposal> before_;
  Ids predictions_ = Ids(4 * kProposalSlots);
  TokenId* block_ids_ = nullptr;
  BlockId* blocks_ = nullptr;
  TokenId* sampled_ = nullptr;
  std::int32_t known_ = 0;
};

TEST_F(Proposals, AreWhatTheNextRowMayVerify) {
  set_ids({1, 2, 3, 4, 1, 2, 3});
  EXPECT_EQ(ids_of(propose({.most = 3})), (Ids{4, 1, 2}));
  EXPECT_EQ(ids_of(propose({.most = 5}, 2)), (Ids{4, 1, 2, 3, 4}));
  EXPECT_EQ(ids_of(propose({.most = 3, .max_tokens = 9})), Ids{4}) << "the last token is never run";
  EXPECT_EQ(ids_of(propose({.most = 3, .max_tokens = 7})), Ids{});
  EXPECT_EQ(ids_of(propose({.most = 3}, -1, SampleError::not_finite)), Ids{});
  EXPECT_EQ(ids_of(propose({.most = 3}, 0)), (Ids{70, 71})) << "its row was idle: those before stay";
}

TEST_F(Proposals, BeginWithWhatTheFormForces) {
  set_ids({1, 2, 3, 4, 1, 2, 3});
  const auto forced = [&](const Ids& ids, std::int32_t masks, int yielded, std::int32_t most = 3) {
    ProposingSequence one{
        .most = most, .masks = masks, .forced_count = static_cast<std::int32_t>(ids.size())};
    std::copy(ids.begin(), ids.end(), one.forced);
    return ids_of(propose(one, yielded));
  };
  EXPECT_EQ(forced({3, 9, 8}, 1, -1), (Ids{9, 8}));
  EXPECT_EQ(forced({3, 9, 8}, 2, 2), (Ids{9, 8}));
  EXPECT_EQ(forced({3, 9, 8, 7, 6}, 2, 2), (Ids{9, 8, 7})) << "no more than a row verifies";
  EXPECT_EQ(forced({3, 4, 1}, 1, 1), (Ids{4, 1, 2})) << "it drafts that itself, and more";
  EXPECT_EQ(forced({3, 9, 8}, 2, 1), (Ids{4, 1, 2})) << "the row ended before that place";
  EXPECT_EQ(forced({2, 9, 8}, 1, 1), (Ids{4, 1, 2})) << "the text was cut into other tokens";
}

TEST_F(Proposals, FollowThePrediction) {
  predictions_ = {0, 0, 0, 0, 3, 4, 5, 6, 0, 0, 0, 0};
  states_[kSlot].prediction_count = 4;
  set_ids({7, 8, 3, 4});
  const Proposal got = propose({.most = 3, .prompt_tokens = 2}, 1);
  EXPECT_EQ(ids_of(got), (Ids{5, 6}));
  EXPECT_EQ(got.predicted, 1);
}

TEST_F(Proposals, ARowThatWaitsForMasksVerifiesThemAndNoOthers) {
  set_ids({1, 2, 3, 1, 2});
  states_[kSlot].known = known_;
  before_[kSlot] = {3, 1, {11, 12, 13}};
  const auto derive = [&](std::int32_t room) {
    const DerivedSequence derived{.slot = kSlot,
                                  .rows = 3,
                                  .drafts = 2,
                                  .max_tokens = 100,
                                  .room = room,
                                  .prompt_tokens = 2,
                                  .gated = 1,
                                  .proposes = 1};
    const StepArrays into{.tokens = device_->put(Ids(3, -7)),
                          .positions = device_->put(std::vector<std::int32_t>(3)),
                          .slots = device_->put(std::vector<KvSlot>(3)),
                          .sequences = device_->put(std::vector<SequenceRows>(1)),
                          .samples = device_->put(std::vector<SampleRow>(3, {.top_k = 5}))};
    std::int32_t* const predicted = device_->put(std::vector<std::int32_t>(1, -1));
    run(*cuda_, DeriveRows{.derived = device_->put(std::vector<DerivedSequence>{derived}),
                           .count = 1,
                           .states = device_->put(states_),
                           .sampled = sampled_,
                           .blocks = blocks_,
                           .blocks_per_slot = 2,
                           .block_ids = block_ids_,
                           .ids_to_next_block = kIdsToNext,
                           .into = into,
                           .proposals = device_->put(before_),
                           .drafts = true,
                           .predicted = predicted});
    const std::int32_t runs = 1 + std::min(2, room - known_);
    Ids tokens(3);
    device_->download(tokens.data(), into.tokens, sizeof(TokenId) * 3);
    std::vector<SampleRow> samples(3);
    device_->download(samples.data(), into.samples, sizeof(SampleRow) * 3);
    const Ids expected{2, 11, 12};
    for (std::int32_t i = 0; i < 3; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(tokens[at], i < runs ? expected[at] : 0);
      EXPECT_EQ(samples[at].logits_row, -1) << "it waits";
      EXPECT_EQ(samples[at].known_tokens, i < runs ? known_ + i : 0);
      EXPECT_EQ(samples[at].top_k, 5);
    }
    std::int32_t of_prediction = -1;
    device_->download(&of_prediction, predicted, sizeof of_prediction);
    EXPECT_EQ(of_prediction, 1);
  };
  derive(64);
  derive(6);
}

TEST_F(Proposals, ARowYieldsNoTokenAtAPlaceWithoutAMask) {
  states_[kSlot].known = 5;
  const auto accept = [&](std::int32_t masks, std::uint32_t held) {
    std::vector<SampleRow> samples(3, {.logits_row = -1});
    for (std::int32_t i = 0; i < masks; ++i) samples[static_cast<std::size_t>(i)].logits_row = i;
    std::vector<SampleResult> results(3);
    for (TokenId i = 0; i < 3; ++i) results[static_cast<std::size_t>(i)].token = 21 + i;
    Yield* const yields = device_->put(std::vector<Yield>{{-1, 0, 0}});
    run(*cuda_,
        AcceptDrafts{.derived = device_->put(std::vector<DerivedSequence>{{.slot = kSlot, .rows = 3}}),
                     .count = 1,
                     .states = device_->put(states_),
                     .sampled = device_->put(Ids(kProposalSlots)),
                     .arrays = {.tokens = device_->put(Ids{20, 21, 22}),
                                .sequences = device_->put(std::vector<SequenceRows>{{.tokens = 3}}),
                                .samples = device_->put(samples)},
                     .results = device_->put(results),
                     .predicted = device_->put(std::vector<std::int32_t>(1)),
                     .yields = yields,
                     .held = device_->put(std::vector<std::uint32_t>{held})});
    Yield got;
    device_->download(&got, yields, sizeof got);
    return got.tokens;
  };
  EXPECT_EQ(accept(3, 0), 3);
  EXPECT_EQ(accept(2, 0), 2);
  EXPECT_EQ(accept(1, 0), 1);
  EXPECT_EQ(accept(3, 1), -1) << "nothing happens while the step is held";
}

}  // namespace
}  // namespace troupe::kernels
