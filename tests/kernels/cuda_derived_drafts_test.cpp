// What the kernels make of a step for the runs of the draft layer: every way in which a sequence may stand
// behind one.
#include "kernels/derived_drafts.h"

#include "kernels/device_under_test.h"

namespace troupe::kernels {
namespace {

constexpr int kSlots = 8, kBlocks = 32, kIdsToNextBlock = 80;

/// A step of sequences that the tests add, each with two blocks, and memory for what is made of it.
class DerivedDrafts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    cuda_ = &shared_cuda(false);
    device_ = std::make_unique<DeviceUnderTest>(*cuda_);
  }
  void TearDown() override { device_.reset(); }

  /// `rows` rows, of which `tokens` run from `position` on. Returns its index.
  std::size_t add(std::int32_t slot, std::int32_t position, std::int32_t tokens, std::int32_t rows,
                  DraftingSequence more = {}) {
    more.slot = slot;
    more.room = more.room > 0 ? more.room : 128;
    sequences_.push_back({nullptr, position, tokens, std::int32_t(tokens_.size())});
    for (int r = 0; r < rows; ++r) tokens_.push_back(100 + TokenId(tokens_.size()));
    drafting_.push_back(more);
    return sequences_.size() - 1;
  }
  /// A sample of each of `rows` rows.
  std::int32_t sample(std::int32_t rows, std::int32_t outputs) {
    const auto first = std::int32_t(samples_.size());
    for (std::int32_t i = 0; i < rows; ++i) {
      samples_.push_back({.logits_row = first + i,
                          .seed = std::uint64_t(first),
                          .position = std::uint32_t(outputs + i),
                          .known_tokens = 1000 + outputs + i,
                          .banned_count = 2,
                          .logprobs = 3});
    }
    return first;
  }
  std::int32_t yield(std::int32_t tokens) {
    yields_.push_back({tokens, 0, 0});
    return std::int32_t(yields_.size()) - 1;
  }
  static BlockId block(std::size_t s, int i) { return BlockId(2 * s + std::size_t(i) + 1); }

  void derive(int most) {
    const std::size_t rows = tokens_.size(), count = sequences_.size();
    std::vector<BlockId> tables;
    for (std::size_t s = 0; s < count; ++s) tables.insert(tables.end(), {block(s, 0), block(s, 1)});
    const BlockId* const table = device_->put(tables);
    for (std::size_t s = 0; s < count; ++s) sequences_[s].blocks = table + 2 * s;
    std::vector<TokenId> sampled;
    for (int slot = 0; slot < kSlots; ++slot) sampled.push_back(50 + slot);
    into_ = {.tokens = device_->put(std::vector<TokenId>(rows, -7)),
             .positions = device_->put(std::vector<std::int32_t>(rows, -7)),
             .from = device_->put(std::vector<std::int32_t>(rows, -7)),
             .slots = device_->put(std::vector<KvSlot>(rows)),
             .sequences = device_->put(std::vector<SequenceRows>(count)),
             .picks = device_->put(std::vector<std::int32_t>(count, -7)),
             .ends = device_->put(std::vector<SequenceRows>(count)),
             .samples = device_->put(std::vector<SampleRow>(count)),
             .carry_to = device_->put(std::vector<std::int32_t>(count, -7)),
             .carry_from = device_->put(std::vector<std::int32_t>(count, -7)),
             .keep_to = device_->put(std::vector<std::int32_t>(count, -7)),
             .keep_from = device_->put(std::vector<std::int32_t>(count, -7)),
             .fill_to = device_->put(std::vector<std::int32_t>(rows, -7)),
             .fill_from = device_->put(std::vector<std::int32_t>(rows, -7))};
    states_ = device_->put(host_states_);
    drafting_at_ = device_->put(drafting_);
    ids_ = device_->put(std::vector<TokenId>(kBlocks * kIdsToNextBlock, -7));
    samples_.push_back({});  // some memory if there are none
    yields_.push_back({});
    run(*cuda_, DeriveDrafts{.drafting = drafting_at_,
                             .count = int(count),
                             .rows = int(rows),
                             .most_drafts = most,
                             .states = states_,
                             .sampled = device_->put(sampled),
                             .yields = device_->put(yields_),
                             .step = {.tokens = device_->put(tokens_),
                                      .sequences = device_->put(sequences_),
                                      .samples = device_->put(samples_)},
                             .block_ids = ids_,
                             .ids_to_next_block = kIdsToNextBlock,
                             .into = into_});
  }

  template <class T>
  T at(const T* array, std::size_t i) {
    T value;
    device_->download(&value, array + i, sizeof value);
    return value;
  }
  TokenId id_at(std::size_t s, int position) {
    return at(ids_, std::size_t(block(s, position / 64)) * kIdsToNextBlock + std::size_t(position % 64));
  }
  void expect_row(std::size_t s, int r, TokenId token, int position, int from) {
    const auto row = std::size_t(sequences_[s].row + r);
    EXPECT_EQ(at(into_.tokens, row), token) << s << ", " << r;
    EXPECT_EQ(at(into_.positions, row), position) << s << ", " << r;
    EXPECT_EQ(at(into_.from, row), from) << s << ", " << r;
    const KvSlot slot = at(into_.slots, row);
    EXPECT_EQ(slot.block, block(s, position / 64)) << s << ", " << r;
    EXPECT_EQ(slot.offset, position % 64) << s << ", " << r;
  }
  void expect_padding(std::size_t s, int r) {
    const auto row = std::size_t(sequences_[s].row + r);
    EXPECT_EQ(at(into_.slots, row).block, kPaddingBlock) << s << ", " << r;
    EXPECT_EQ(at(into_.tokens, row), 0) << s << ", " << r;
    EXPECT_EQ(at(into_.from, row), int(row)) << s << ", " << r;
  }
  void expect_sequence(std::size_t s, int position, int tokens) {
    const SequenceRows got = at(into_.sequences, s);
    EXPECT_EQ(got.tokens, tokens) << s;
    EXPECT_EQ(got.row, sequences_[s].row) << s;
    if (tokens > 0) {
      EXPECT_EQ(got.position, position) << s;
    }
    EXPECT_EQ(got.blocks, sequences_[s].blocks) << s;
  }
  /// The row that drafts, alone.
  void expect_end(std::size_t s, int position, int tokens) {
    const SequenceRows got = at(into_.ends, s);
    EXPECT_EQ(got.tokens, tokens) << s;
    EXPECT_EQ(got.row, int(s));
    EXPECT_EQ(got.position, position) << s;
    EXPECT_EQ(got.blocks, sequences_[s].blocks) << s;
  }
  void expect_kept(std::size_t s, int slot, int row) {
    EXPECT_EQ(at(into_.keep_to, s), slot) << s;
    if (slot >= 0) {
      EXPECT_EQ(at(into_.keep_from, s), sequences_[s].row + row) << s;
    }
  }
  SlotState state(std::size_t slot) { return at(states_, slot); }

  Cuda* cuda_ = nullptr;
  std::unique_ptr<DeviceUnderTest> device_;
  std::vector<SequenceRows> sequences_;
  std::vector<TokenId> tokens_;  // row r has token 100 + r
  std::vector<SampleRow> samples_;
  std::vector<Yield> yields_;
  std::vector<DraftingSequence> drafting_;
  std::vector<SlotState> host_states_ = std::vector<SlotState>(kSlots);
  DraftArrays into_;
  SlotState* states_ = nullptr;
  DraftingSequence* drafting_at_ = nullptr;
  TokenId* ids_ = nullptr;
};

TEST_F(DerivedDrafts, AChunkWhoseNextTokenIsNotKnownKeepsItsLastRow) {
  const std::size_t s = add(3, 0, 3, 3);
  derive(2);
  expect_row(s, 0, 101, 1, 0);
  expect_row(s, 1, 102, 2, 1);
  expect_padding(s, 2);
  expect_sequence(s, 1, 2);
  expect_kept(s, 3, 2);
  EXPECT_EQ(at(into_.samples, s).logits_row, -1);
  EXPECT_EQ(at(into_.carry_to, s), -1);
  EXPECT_EQ(state(3).draft_slots, 3);
}

TEST_F(DerivedDrafts, TheNextChunkBeginsWithTheSlotThatIsLacking) {
  host_states_[3].draft_slots = 62;
  const std::size_t s = add(3, 62, 4, 4);
  derive(0);
  expect_row(s, 0, 100, 62, -1 - 3);
  expect_row(s, 1, 101, 63, 0);
  expect_row(s, 2, 102, 64, 1);
  expect_row(s, 3, 103, 65, 2);
  expect_sequence(s, 62, 4);
  expect_kept(s, 3, 3);
  EXPECT_EQ(at(into_.carry_to, s), -1) << "the row was kept";
  EXPECT_EQ(at(into_.fill_to, 1), block(s, 0)) << "position 63";
  EXPECT_EQ(at(into_.fill_from, 1), 1);
  for (const std::size_t row : {0u, 2u, 3u}) EXPECT_EQ(at(into_.fill_to, row), -1);
  EXPECT_EQ(state(3).draft_slots, 66);
}

TEST_F(DerivedDrafts, BehindCachedBlocksTheFirstHiddenRowIsTheirs) {
  (void)add(-1, 0, 0, 1);
  const std::size_t s = add(0, 64, 2, 2, {.sample = sample(1, 0), .drafts = 3, .max_tokens = 100});
  derive(2);
  expect_row(s, 0, 101, 64, -1);
  expect_row(s, 1, 102, 65, 1);
  expect_sequence(s, 64, 2);
  EXPECT_EQ(at(into_.carry_to, s), 0);
  EXPECT_EQ(at(into_.carry_from, s), block(s, 0));
  expect_kept(s, 0, 1);
  EXPECT_EQ(at(into_.samples, s).logits_row, -1) << "no row is left for the token that was sampled";
  EXPECT_EQ(state(0).draft_slots, 66);
}

TEST_F(DerivedDrafts, AForkThatBeginsWithinABlockLacksNothing) {
  const std::size_t s = add(2, 70, 1, 1, {.sample = sample(1, 0), .drafts = 3, .max_tokens = 100});
  derive(2);
  expect_row(s, 0, 52, 71, 0);
  expect_kept(s, -1, 0);
  EXPECT_EQ(at(into_.carry_to, s), -1);
  EXPECT_EQ(at(drafting_at_, s).drafts, 2);
}

TEST_F(DerivedDrafts, OfVerifiedRowsThoseAcceptedRunAndTheNextTokenIsDraftedFor) {
  (void)add(4, 5, 0, 3, {.sample = sample(3, 9), .derived = yield(0), .drafts = 2});  // idle
  host_states_[4].drafted = 2;
  host_states_[1].draft_slots = 63;
  const std::int32_t first = sample(4, 20);
  const std::size_t s = add(
      1, 62, 4, 4, {.sample = first, .derived = yield(3), .drafts = 3, .max_tokens = 200, .min_tokens = 23});
  (void)add(-1, 0, 0, 4);
  derive(2);
  expect_row(s, 0, 104, 63, 3);
  expect_row(s, 1, 105, 64, 4);
  expect_row(s, 2, 51, 65, 5);
  expect_padding(s, 3);
  expect_sequence(s, 63, 3);
  EXPECT_EQ(at(into_.picks, s), 5);
  expect_end(s, 65, 1);
  expect_end(0, 0, 0);
  expect_end(2, 0, 0);
  EXPECT_EQ(at(into_.fill_to, 4), block(s, 0));
  expect_kept(s, -1, 0);
  const SampleRow made = at(into_.samples, s);
  EXPECT_EQ(made.logits_row, int(s));
  EXPECT_EQ(made.seed, std::uint64_t(first));
  EXPECT_EQ(made.position, 23u);
  EXPECT_EQ(made.known_tokens, 1023);
  EXPECT_EQ(made.banned_count, 0) << "23 output tokens are enough";
  EXPECT_EQ(made.logprobs, -1);
  EXPECT_EQ(id_at(s, 65), 51);
  EXPECT_EQ(state(1).draft_slots, 66);
  EXPECT_EQ(state(1).drafted_behind, 66);
  EXPECT_EQ(at(drafting_at_, s).drafts, 2);
  // The idle one and padding.
  expect_sequence(0, 0, 0);
  for (int r = 0; r < 3; ++r) expect_padding(0, r);
  for (int r = 0; r < 4; ++r) expect_padding(2, r);
  EXPECT_EQ(at(drafting_at_, 0).drafts, 0);
  EXPECT_EQ(state(4).drafted, 2) << "its drafts are still those of its next row";
}

TEST_F(DerivedDrafts, WhereRowsAreLeftTheLackingSlotAndTheLastTokenBothRun) {
  host_states_[1].draft_slots = 10;
  const std::size_t s =
      add(1, 10, 1, 2, {.sample = sample(2, 3), .derived = yield(1), .drafts = 1, .max_tokens = 90});
  derive(1);
  expect_row(s, 0, 100, 10, -2);
  expect_row(s, 1, 51, 11, 0);
  expect_sequence(s, 10, 2);
  EXPECT_EQ(at(into_.picks, s), 1);
  expect_end(s, 11, 1);
  EXPECT_EQ(at(drafting_at_, s).drafts, 1);
  EXPECT_EQ(state(1).draft_slots, 12);
}

TEST_F(DerivedDrafts, WithoutABlockForTheLastTokenItsSlotIsLacking) {
  host_states_[5].draft_slots = 63;
  const std::size_t s = add(
      5, 62, 2, 2, {.sample = sample(2, 3), .derived = yield(2), .drafts = 1, .max_tokens = 90, .room = 64});
  derive(1);
  expect_row(s, 0, 101, 63, 0);
  expect_padding(s, 1);
  expect_kept(s, 5, 1);
  EXPECT_EQ(at(into_.fill_to, 1), block(s, 0));
  EXPECT_EQ(at(drafting_at_, s).drafts, 0);
  EXPECT_EQ(state(5).draft_slots, 64);
}

TEST_F(DerivedDrafts, NoMoreThanRowsOfTheSequenceMayVerify) {
  const auto of = [&](std::int32_t slot, std::int32_t max_tokens, std::int32_t room) {
    host_states_[std::size_t(slot)].draft_slots = 61;
    return add(slot, 60, 1, 1, {.sample = sample(1, 3), .drafts = 5, .max_tokens = max_tokens, .room = room});
  };
  const std::size_t last = of(0, 62, 128), one = of(1, 64, 128), blocks = of(2, 100, 64);
  derive(5);
  EXPECT_EQ(at(drafting_at_, last).drafts, 0) << "it has all its tokens";
  EXPECT_EQ(at(drafting_at_, one).drafts, 1) << "the last token is never run";
  EXPECT_EQ(at(drafting_at_, blocks).drafts, 3) << "slots 61, 62 and 63";
  for (const std::size_t s : {last, one, blocks}) EXPECT_EQ(at(into_.sequences, s).tokens, 1) << s;
}

TEST_F(DerivedDrafts, ATokenThatIsSampledAgainLacksNothing) {
  host_states_[1].draft_slots = 12;
  const std::size_t s = add(1, 9, 1, 1, {.sample = sample(1, 3), .drafts = 1, .max_tokens = 90});
  derive(1);
  expect_row(s, 0, 51, 10, 0);
  EXPECT_EQ(state(1).draft_slots, 11);
}

TEST_F(DerivedDrafts, DraftsAreTakenAndTheNextRunBeginsBehindThem) {
  (void)add(-1, 0, 0, 2);
  host_states_[1].draft_slots = 63;
  const std::size_t s =
      add(1, 62, 1, 2,
          {.sample = sample(2, 5), .derived = yield(1), .drafts = 3, .max_tokens = 90, .min_tokens = 7});
  derive(3);
  std::vector<SampleResult> results(2);
  results[s].token = 77;
  TakeDrafts take{.drafting = drafting_at_,
                  .count = 2,
                  .made = 1,
                  .again = true,
                  .results = device_->put(results),
                  .states = states_,
                  .drafted = device_->put(std::vector<TokenId>(kSlots * kMostDrafts, -7)),
                  .block_ids = ids_,
                  .ids_to_next_block = kIdsToNextBlock,
                  .into = into_};
  run(*cuda_, take);
  EXPECT_EQ(at(take.drafted, kMostDrafts), 77);
  EXPECT_EQ(state(1).drafted, 1);
  EXPECT_EQ(state(1).drafted_behind, 64);
  EXPECT_EQ(at(into_.tokens, s), 77);
  EXPECT_EQ(at(into_.positions, s), 64);
  EXPECT_EQ(at(into_.from, s), int(s));
  EXPECT_EQ(at(into_.slots, s).block, block(s, 1));
  EXPECT_EQ(at(into_.slots, s).offset, 0);
  EXPECT_EQ(id_at(s, 64), 77);
  const SequenceRows row = at(into_.sequences, s);
  EXPECT_EQ(row.position, 64);
  EXPECT_EQ(row.tokens, 1);
  EXPECT_EQ(row.row, int(s));
  const SampleRow sample = at(into_.samples, s);
  EXPECT_EQ(sample.logits_row, int(s));
  EXPECT_EQ(sample.position, 7u);
  EXPECT_EQ(sample.known_tokens, 1007);
  EXPECT_EQ(sample.banned_count, 0);
  EXPECT_EQ(at(into_.sequences, 0).tokens, 0);
  EXPECT_EQ(at(into_.slots, 0).block, kPaddingBlock);
  EXPECT_EQ(at(into_.samples, 0).logits_row, -1);

  results[s].error = SampleError::not_finite;
  take.results = device_->put(results);
  take.made = 2;
  run(*cuda_, take);
  EXPECT_EQ(state(1).drafted, 1) << "an error ends the drafts";
  EXPECT_EQ(at(into_.sequences, s).tokens, 0);
  EXPECT_EQ(at(into_.samples, s).logits_row, -1);
  results[s].error = SampleError::none;
  take.results = device_->put(results);
  take.made = 3;
  take.again = false;
  run(*cuda_, take);
  EXPECT_EQ(state(1).drafted, 1);
}

}  // namespace
}  // namespace troupe::kernels
