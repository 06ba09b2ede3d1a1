// Checks of the draft layer's ops, and of rows that are derived on the GPU, by hand.
#include "kernels/check/expect.h"
#include "kernels/check/side.h"
#include "kernels/derived_drafts.h"
#include "kernels/derived_rows.h"
#include "kernels/draft_rows.h"

namespace troupe::kernels::check {
namespace {

void add_rows(Checks& checks) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    checks.push_back(
        {"DraftInput",
         std::string(to_string(dtype)) + ", 9 rows of 1000",
         {},
         one_kernel,
         on_both(rounded_between(dtype), [dtype](auto& side) {
           constexpr int kRows = 9, kCols = 1000;
           void* const out = side.rows(dtype, kRows, 2 * kCols);
           float* const residual = side.floats(kRows, kCols, draw(kRows * kCols, 131));
           run(side.device(),
               DraftInput{.out = out,
                          .residual = residual,
                          .hidden = side.rows(dtype, kRows, kCols, draw(kRows * kCols, 132)),
                          .kept = side.rows(dtype, 2, kCols, draw(2 * kCols, 133)),
                          .from = side.put(std::vector<std::int32_t>{8, -1, 0, 3, -2, 5, 1, 2, 7}),
                          .embedding_norm = side.floats(1, kCols, draw(kCols, 134)),
                          .hidden_norm = side.floats(1, kCols, draw(kCols, 135)),
                          .dtype = dtype,
                          .rows = kRows,
                          .cols = kCols});
           Numbers numbers = side.numbers(dtype, out, kRows, 2 * kCols);
           const Numbers after = side.numbers(DType::f32, residual, kRows, kCols);
           numbers.insert(numbers.end(), after.begin(), after.end());
           return numbers;
         })});
  }
  checks.push_back({"RoundRows", "bfloat16, picked", {}, one_kernel, on_both(kExact, [](auto& side) {
                      void* const out = side.rows(DType::bf16, 3, 100);
                      Numbers values = draw(9 * 100, 136);
                      for (float& value : values) value *= 1.0009765625f;  // not representable
                      run(side.device(), RoundRows{.out = out,
                                                   .rows = side.floats(9, 100, values),
                                                   .pick = side.put(std::vector<std::int32_t>{8, 0, 4}),
                                                   .count = 3,
                                                   .cols = 100});
                      return side.numbers(DType::bf16, out, 3, 100);
                    })});
  checks.push_back({"CopyRows", "to places", {}, one_kernel, on_both(kExact, [](auto& side) {
                      constexpr std::size_t kBytes = 96 * sizeof(float);
                      float* const out = side.floats(6, 96);
                      run(side.device(), CopyRows{.out = out,
                                                  .rows = side.floats(5, 96, draw(5 * 96, 137)),
                                                  .to = side.put(std::vector<std::int32_t>{4, -1, 0}),
                                                  .from = side.put(std::vector<std::int32_t>{1, 99, 3}),
                                                  .count = 3,
                                                  .out_stride = kBytes,
                                                  .row_stride = kBytes,
                                                  .row_bytes = kBytes});
                      return side.numbers(DType::f32, out, 6, 96);
                    })});
}

constexpr std::int32_t kIdsToNext = 80, kSlot = 1, kSlots = 3;
using Ids = std::vector<TokenId>;

/// Ids 1 2 3 4 1 2 3 of slot 1, whose first block is block 3.
struct KnownIds {
  explicit KnownIds(Side<Cuda>& side) {
    Ids memory(4 * kIdsToNext, -7);
    const Ids ids{1, 2, 3, 4, 1, 2};
    std::copy(ids.begin(), ids.end(), memory.begin() + 3 * kIdsToNext);
    block_ids = side.put(memory);
    blocks = side.put(std::vector<BlockId>{0, 0, 3, 2, 0, 0});
    sampled = side.put(Ids{0, 3, 0});
    std::vector<SlotState> all(kSlots);
    all[kSlot].known = 7;
    states = side.put(all);
  }
  TokenId* block_ids = nullptr;
  const BlockId* blocks = nullptr;
  TokenId* sampled = nullptr;
  SlotState* states = nullptr;
};

/// A row of the last token and the two tokens that a proposal has, which waits for its masks.
Status check_derive_rows(Cpu&, Cuda& cuda) {
  Side<Cuda> side(cuda);
  const KnownIds known(side);
  std::vector<Proposal> proposals(kSlots);
  proposals[kSlot] = {3, 1, {11, 12, 13}};
  const StepArrays into{.tokens = side.put(Ids(3, -7)),
                        .positions = side.put(std::vector<std::int32_t>(3)),
                        .slots = side.put(std::vector<KvSlot>(3)),
                        .sequences = side.put(std::vector<SequenceRows>(1)),
                        .samples = side.put(std::vector<SampleRow>(3, {.top_k = 5}))};
  run(cuda, DeriveRows{.derived = side.put(std::vector<DerivedSequence>{{.slot = kSlot,
                                                                         .rows = 3,
                                                                         .drafts = 2,
                                                                         .max_tokens = 100,
                                                                         .room = 64,
                                                                         .prompt_tokens = 2,
                                                                         .gated = 1,
                                                                         .proposes = 1}}),
                       .count = 1,
                       .states = known.states,
                       .sampled = known.sampled,
                       .blocks = known.blocks,
                       .blocks_per_slot = 2,
                       .block_ids = known.block_ids,
                       .ids_to_next_block = kIdsToNext,
                       .into = into,
                       .proposals = side.put(proposals),
                       .drafts = true,
                       .predicted = side.put(std::vector<std::int32_t>{-1})});
  Expect expect;
  const Ids expected{3, 11, 12}, tokens = side.get(into.tokens, 3);
  const auto samples = side.get(into.samples, 3);
  const auto positions = side.get(into.positions, 3);
  for (std::size_t i = 0; i < 3; ++i) {
    expect.equal(tokens[i], expected[i], "token");
    expect.equal(positions[i], static_cast<std::int32_t>(6 + i), "position");
    expect.equal(samples[i].known_tokens, static_cast<std::int32_t>(7 + i), "known tokens");
    expect.equal(samples[i].logits_row, -1, "row of a gated sample");
  }
  return expect.status();
}

/// Of three tokens that were run the first two were drafts, and right.
Status check_accept(Cpu&, Cuda& cuda) {
  Side<Cuda> side(cuda);
  std::vector<SlotState> states(kSlots);
  states[kSlot].known = 5;
  std::vector<SampleRow> samples(3);
  std::vector<SampleResult> results(3);
  for (std::int32_t i = 0; i < 3; ++i) {
    samples[static_cast<std::size_t>(i)].logits_row = i;
    results[static_cast<std::size_t>(i)].token = 21 + i;
  }
  Yield* const yields = side.put(std::vector<Yield>{{-1, 0, 0}});
  TokenId* const sampled = side.put(Ids(kSlots));
  SlotState* const there = side.put(states);
  run(cuda, AcceptDrafts{.derived = side.put(std::vector<DerivedSequence>{{.slot = kSlot, .rows = 3}}),
                         .count = 1,
                         .states = there,
                         .sampled = sampled,
                         .arrays = {.tokens = side.put(Ids{20, 21, 22}),
                                    .sequences = side.put(std::vector<SequenceRows>{{.tokens = 3}}),
                                    .samples = side.put(samples)},
                         .results = side.put(results),
                         .predicted = side.put(std::vector<std::int32_t>(1)),
                         .yields = yields});
  Expect expect;
  expect.equal(side.get(yields, 1)[0].tokens, 3, "tokens");
  expect.equal(side.get(sampled, kSlots)[kSlot], 23, "last token");
  return expect.status();
}

Status check_propose(Cpu&, Cuda& cuda) {
  Side<Cuda> side(cuda);
  const KnownIds known(side);
  Proposal* const proposals = side.put(std::vector<Proposal>(kSlots));
  run(cuda,
      ProposeDrafts{
          .sequences =
              side.put(std::vector<ProposingSequence>{{}, {.slot = kSlot, .most = 3, .max_tokens = 100}}),
          .count = 2,
          .states = side.room<SlotState>(kSlots),
          .sampled = known.sampled,
          .blocks = known.blocks,
          .blocks_per_slot = 2,
          .block_ids = known.block_ids,
          .ids_to_next_block = kIdsToNext,
          .samples = side.put(std::vector<SampleRow>{{.known_tokens = 6}}),
          .results = side.put(std::vector<SampleResult>(1)),
          .yields = side.put(std::vector<Yield>(1)),
          .source = {.predictions = {side.put(Ids(4 * kSlots)), 4}, .shortest_ngram = 2, .longest_ngram = 5},
          .proposals = proposals});
  const Proposal got = side.get(proposals, kSlots)[kSlot];
  Expect expect;
  expect.equal(got.count, 3, "draft tokens");
  for (std::size_t i = 0; i < 3; ++i) expect.equal(got.ids[i], (Ids{4, 1, 2})[i], "draft token");
  return expect.status();
}

/// A sequence of slot 1 whose last token has just been sampled at position 63: the draft layer runs it, and
/// then, with the draft that it made, the next one.
Status check_drafts(Cpu&, Cuda& cuda) {
  constexpr std::int32_t kPosition = 62;
  Side<Cuda> side(cuda);
  std::vector<SlotState> states(kSlots);
  states[kSlot].draft_slots = kPosition + 1;
  SlotState* const there = side.put(states);
  DraftingSequence* const drafting = side.put(std::vector<DraftingSequence>{
      {.slot = kSlot, .sample = 0, .drafts = 2, .max_tokens = 100, .room = 128, .min_tokens = 0}});
  const BlockId* const table = side.put(std::vector<BlockId>{1, 2});
  TokenId* const ids = side.put(Ids(4 * kIdsToNext, -7));
  const std::vector<std::int32_t> none(1, -7);
  const DraftArrays into{.tokens = side.put(Ids{-7}),
                         .positions = side.put(none),
                         .from = side.put(none),
                         .slots = side.put(std::vector<KvSlot>(1)),
                         .sequences = side.put(std::vector<SequenceRows>(1)),
                         .picks = side.put(none),
                         .ends = side.put(std::vector<SequenceRows>(1)),
                         .samples = side.put(std::vector<SampleRow>(1)),
                         .carry_to = side.put(none),
                         .carry_from = side.put(none),
                         .keep_to = side.put(none),
                         .keep_from = side.put(none),
                         .fill_to = side.put(none),
                         .fill_from = side.put(none)};
  run(cuda, DeriveDrafts{.drafting = drafting,
                         .count = 1,
                         .rows = 1,
                         .most_drafts = 2,
                         .states = there,
                         .sampled = side.put(Ids{50, 51, 52}),
                         .yields = side.put(std::vector<Yield>(1)),
                         .step = {.tokens = side.put(Ids{100}),
                                  .sequences = side.put(std::vector<SequenceRows>{{table, kPosition, 1, 0}}),
                                  .samples = side.put(std::vector<SampleRow>{
                                      {.logits_row = 0, .known_tokens = kPosition + 1}})},
                         .block_ids = ids,
                         .ids_to_next_block = kIdsToNext,
                         .into = into});
  Expect expect;
  expect.equal(side.get(into.tokens, 1)[0], 51, "token of the first run");
  expect.equal(side.get(into.positions, 1)[0], kPosition + 1, "position of the first run");
  expect.equal(side.get(ids, 4 * kIdsToNext)[kIdsToNext + kPosition + 1], 51, "id in the block");
  std::vector<SampleResult> results(1);
  results[0].token = 77;
  TokenId* const drafted = side.put(Ids(kSlots * kMostDrafts, -7));
  run(cuda, TakeDrafts{.drafting = drafting,
                       .count = 1,
                       .made = 1,
                       .again = true,
                       .results = side.put(results),
                       .states = there,
                       .drafted = drafted,
                       .block_ids = ids,
                       .ids_to_next_block = kIdsToNext,
                       .into = into});
  expect.equal(side.get(drafted, kSlots * kMostDrafts)[kSlot * kMostDrafts], 77, "draft token");
  expect.equal(side.get(there, kSlots)[kSlot].drafted, 1, "number of draft tokens");
  expect.equal(side.get(into.tokens, 1)[0], 77, "token of the second run");
  expect.equal(side.get(into.positions, 1)[0], kPosition + 2, "position of the second run");
  return expect.status();
}

}  // namespace

void add_draft_checks(Checks& checks) {
  add_rows(checks);
  checks.push_back({"DeriveRows", "a gated row of three tokens", {}, one_kernel, check_derive_rows});
  checks.push_back({"AcceptDrafts", "two right drafts", {}, one_kernel, check_accept});
  checks.push_back({"ProposeDrafts", "by an n-gram", {}, one_kernel, check_propose});
  checks.push_back({"DeriveDrafts, TakeDrafts", "two runs of the draft layer", {}, one_kernel, check_drafts});
}

}  // namespace troupe::kernels::check
