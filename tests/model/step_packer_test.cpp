// A piece is read here as the GPU's first kernel reads it, into memory that stands for the device's: what was
// packed has to arrive, whole and where the rows look for it.
#include "model/cuda/step_packer.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>

#include "model/plan_check.h"
#include "model/support/plans.h"

namespace troupe::model {
namespace {

using test::Plans;

constexpr SlotRef kPackedA{0, 1}, kPackedB{2, 1};

wire::Capacity capacity() {
  wire::Capacity made;
  made.kv_blocks = 1000;
  made.max_slots = 3;
  made.max_tokens_per_step = 4096;
  made.max_model_len = 8192;
  made.vocab_size = 100'000;
  made.max_logprobs = 40;
  made.embedding_width = 32;
  return made;
}

class StepPackerTest : public ::testing::Test {
 protected:
  explicit StepPackerTest(const wire::Capacity& limits = capacity(),
                          const std::optional<VisionSpec>& vision = {})
      : layout(StepPacker::layout(limits)), check(limits), table(3, vision) {
    const std::size_t bytes = StepMemory::make(limits, {}).bytes;
    device.resize(bytes / 8 + 16);
    const auto at = (reinterpret_cast<std::uintptr_t>(device.data()) + 63) / 64 * 64;
    memory = StepMemory::make(limits, {reinterpret_cast<void*>(at), bytes});
    memory.sequences.kv_ids = reinterpret_cast<TokenId*>(std::uintptr_t{1} << 20);
    memory.sequences.ids_to_next_block = 77;
    piece.resize(layout.bytes / 8);
  }

  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(piece)); }
  template <class T>
  const T* in_piece(std::uint32_t at) {
    return reinterpret_cast<const T*>(bytes().data() + at);
  }

  PackedStep pack() {
    const wire::RecordView view = plans.plan();
    const auto& plan = *view.as<wire::StepPlan>();
    const Status status = check.admit(view, plan);
    EXPECT_TRUE(status.ok()) << status.message;
    table.apply(view, plan, batch);
    StepPacker packer(memory.sequences, layout, 3);
    const PackedStep packed = packer.pack(view, plan, table, batch, bytes());
    const auto* deltas = in_piece<kernels::Delta>(layout.deltas);
    for (int d = 0; d < packed.deltas; ++d) deliver(deltas[d]);
    for (const auto* end = in_piece<kernels::Delta>(layout.words); deltas + packed.deltas < end; --end) {
      EXPECT_EQ(end[-1].words, 0u) << "left of an earlier step";
      if (end[-1].words != 0) break;
    }
    return packed;
  }

  void deliver(const kernels::Delta& delta) {
    ASSERT_LE(delta.words, kernels::kWordsOfDelta);
    ASSERT_GT(delta.words, 0u);
    if (delta.words == 1) {
      *delta.to = delta.from;
      return;
    }
    ASSERT_GE(delta.from, layout.words);
    ASSERT_LE(delta.from + delta.words * 4, layout.bytes);
    std::memcpy(delta.to, bytes().data() + delta.from, delta.words * 4);
  }

  const BlockId* blocks(SlotRef ref) const {
    return memory.sequences.blocks + ref.slot * memory.sequences.blocks_per_slot;
  }

  std::vector<std::uint64_t> device;
  StepMemory memory;
  kernels::PieceLayout layout;
  std::vector<std::uint64_t> piece;
  Plans plans;
  PlanCheck check;
  WorkerSequences table;
  StepBatch batch;
};

TEST_F(StepPackerTest, APromptOfAnyLengthArrivesWhole) {
  for (const int length : {1, 2, 511, 512, 513, 514, 1024, 1025, 3000}) {
    std::vector<TokenId> prompt(static_cast<std::size_t>(length));
    std::iota(prompt.begin(), prompt.end(), 7);
    std::vector<BlockId> table_of(static_cast<std::size_t>(length / 64 + 1));
    std::iota(table_of.begin(), table_of.end(), 100);
    const SlotRef ref{2, static_cast<std::uint32_t>(length)};
    plans.start(ref, length, length).ids(ref, 0, prompt).blocks(ref, 0, table_of).row(ref, 0, length, true);
    const PackedStep packed = pack();
    EXPECT_EQ(packed.rows, length);
    EXPECT_EQ(packed.sequences, 1);
    EXPECT_EQ(packed.samples, 1);
    EXPECT_EQ(packed.decode, length == 1);
    EXPECT_EQ(std::memcmp(blocks(ref), table_of.data(), table_of.size() * sizeof(BlockId)), 0) << length;
    for (int r = 0; r < length; ++r) {
      const auto& row = in_piece<kernels::InputRow>(layout.rows)[r];
      const auto& slot = in_piece<kernels::KvSlot>(layout.slots)[r];
      ASSERT_EQ(row.token, 7 + r);
      ASSERT_EQ(row.position, r);
      ASSERT_EQ(slot.block, 100 + r / 64);
      ASSERT_EQ(slot.offset, r % 64);
    }
    EXPECT_EQ(in_piece<std::int32_t>(layout.picks)[0], length - 1);
    EXPECT_EQ(packed.reads, length > 32 ? std::optional(1) : std::nullopt);
    if (packed.reads) {
      EXPECT_EQ(memory.sequences.read_rows[0], length - 1);
      const kernels::SequenceRows& read = memory.sequences.read_sequences[0];
      EXPECT_EQ(read.blocks, blocks(ref));
      EXPECT_EQ(read.position, length - 1);
      EXPECT_EQ(read.tokens, 1);
      EXPECT_EQ(read.row, 0);
    }
    const auto& sequence = in_piece<kernels::SequenceRows>(layout.sequences)[0];
    EXPECT_EQ(sequence.blocks, blocks(ref));
    EXPECT_EQ(sequence.tokens, length);
    plans.finish(ref);
  }
}

TEST_F(StepPackerTest, ADecodeRowNamesWhereItsTokenWillBe) {
  for (const SlotRef ref : {kPackedA, kPackedB}) {
    plans.start(ref, 70, 70).ids(ref, 0, std::vector<TokenId>(70, 5)).blocks(ref, 0, {9, 8});
    plans.row(ref, 0, 70, true);
  }
  EXPECT_FALSE(pack().decode);
  plans.row(kPackedB, 70, 1, true).row(kPackedA, 70, 1, true);
  const PackedStep packed = pack();
  EXPECT_TRUE(packed.decode);
  EXPECT_EQ(packed.deltas, 0);
  const auto* rows = in_piece<kernels::InputRow>(layout.rows);
  EXPECT_EQ(rows[0].token, kernels::sampled_by(kPackedB.slot));
  EXPECT_EQ(rows[1].token, kernels::sampled_by(kPackedA.slot));
  EXPECT_LT(rows[0].token, 0);
  EXPECT_EQ(rows[1].position, 70);
  const auto* samples = in_piece<kernels::SampleRow>(layout.samples);
  EXPECT_EQ(samples[0].next, memory.sequences.sampled + kPackedB.slot)
      << "where the next step's row will look";
  EXPECT_EQ(samples[0].tokens, memory.sequences.kv_ids);
  EXPECT_EQ(samples[0].blocks, blocks(kPackedB)) << "its ids lie in its KV blocks";
  EXPECT_EQ(samples[0].block_ids, 77);
  EXPECT_EQ(samples[0].known_tokens, 71);
  EXPECT_EQ(samples[1].logits_row, 1);
}

// All of its rows decode as far as their numbers tell: the hidden row is copied behind the graph.
TEST_F(StepPackerTest, AStepWithAnEmbeddedPromptOfOneRowStillDecodes) {
  plans.start(kPackedA, 70, 70).ids(kPackedA, 0, std::vector<TokenId>(70, 5)).blocks(kPackedA, 0, {9, 8});
  plans.start(kPackedB, 2, 2, {.embeds = 1}).ids(kPackedB, 0, {5, 6}).blocks(kPackedB, 0, {7});
  plans.row(kPackedA, 0, 70, true).row(kPackedB, 0, 1, false);
  EXPECT_TRUE(pack().embeds.empty());
  plans.row(kPackedA, 70, 1, true).row(kPackedB, 1, 1, true);
  const PackedStep packed = pack();
  EXPECT_TRUE(packed.decode);
  EXPECT_EQ(std::vector(packed.embeds.begin(), packed.embeds.end()), std::vector<std::int32_t>{1});
  plans.row(kPackedA, 71, 1, true);
  EXPECT_TRUE(pack().embeds.empty());
}

TEST_F(StepPackerTest, RowsWithManyLogprobsArriveAndShareOneArray) {
  constexpr int kPrompt = 6;
  const auto start = [&](SlotRef ref, const wire::Sampling& sampling) {
    plans.start(ref, kPrompt, kPrompt, sampling).ids(ref, 0, std::vector<TokenId>(kPrompt, 5));
    plans.blocks(ref, 0, {static_cast<BlockId>(ref.slot)}).row(ref, 0, kPrompt, true);
  };
  start(kPackedA, {.logprobs = 20, .prompt_logprobs = 25});
  start(kPackedB, {.logprobs = 40});
  const PackedStep packed = pack();
  ASSERT_EQ(packed.score_tops.size(), 5u);
  ASSERT_EQ(packed.sample_tops.size(), 1u);
  EXPECT_EQ(packed.tops, 5 * 25 + 40);
  for (int i = 0; i < 5; ++i) {
    const kernels::TopRow& row = memory.sequences.score_tops[i];
    EXPECT_EQ(row.logits_row, i % 3) << "within its group";
    EXPECT_EQ(row.count, 25);
    EXPECT_EQ(row.first, 25 * i);
    EXPECT_EQ(batch.scored[static_cast<std::size_t>(i)].first_top, 25 * i);
  }
  EXPECT_EQ(memory.sequences.sample_tops->logits_row, 1);
  EXPECT_EQ(memory.sequences.sample_tops->count, 40);
  EXPECT_EQ(memory.sequences.sample_tops->first, 125);
  EXPECT_EQ(batch.outcomes[0].first_top, -1) << "20 are in its result";
  EXPECT_EQ(batch.outcomes[1].first_top, 125);
  plans.row(kPackedA, kPrompt, 1, true);
  EXPECT_TRUE(pack().decode);
  plans.row(kPackedA, kPrompt + 1, 1, true).row(kPackedB, kPrompt, 1, true);
  EXPECT_FALSE(pack().decode) << "no graph looks for tops";
}

// 512 sequences of up to 131,072 tokens once had 256 MiB of ids. Now a slot has one, and each KV block its
// own 64.
TEST(StepMemoryTest, ASlotTakesNoRoomForIdsOfItsWholeLength) {
  wire::Capacity large = capacity();
  large.max_slots = 512;
  large.max_model_len = 131'072;
  wire::Capacity small = large;
  small.max_model_len = 8'192;
  const std::size_t tables = 512 * sizeof(BlockId) * std::size_t{(131'072 - 8'192) / 64};
  EXPECT_EQ(StepMemory::make(large, {}).bytes - StepMemory::make(small, {}).bytes, tables);
}

TEST_F(StepPackerTest, PaddingIsWhatKernelsPassOver) {
  StepPacker::pad(layout, bytes(), 2, 9, 3);
  for (int r = 2; r < 9; ++r) {
    EXPECT_EQ(in_piece<kernels::InputRow>(layout.rows)[r].token, 0);
    EXPECT_EQ(in_piece<kernels::KvSlot>(layout.slots)[r].block, kernels::kPaddingBlock);
  }
  EXPECT_EQ(in_piece<kernels::SequenceRows>(layout.sequences)[2].tokens, 0);
  EXPECT_EQ(in_piece<kernels::SequenceRows>(layout.sequences)[2].row, 2);
  EXPECT_EQ(in_piece<kernels::SampleRow>(layout.samples)[2].logits_row, -1);
}

TEST_F(StepPackerTest, BiasesAndBannedStopIdsLieBehindOneAnother) {
  plans.start(kPackedA, 1, 1, {.min_tokens = 2}, {70, 80, 90}, {{3, 0.5f}, {4, -1.5f}});
  plans.ids(kPackedA, 0, {1}).blocks(kPackedA, 0, {0}).row(kPackedA, 0, 1, true);
  pack();
  const auto& row = in_piece<kernels::SampleRow>(layout.samples)[0];
  ASSERT_EQ(row.bias_count, 2);
  EXPECT_EQ(row.bias[1].token, 4);
  EXPECT_EQ(row.bias[1].bias, -1.5f);
  ASSERT_EQ(row.banned_count, 3);
  EXPECT_EQ(std::vector<TokenId>(row.banned, row.banned + 3), (std::vector<TokenId>{70, 80, 90}));
  plans.row(kPackedA, 1, 1, true);
  pack();
  plans.row(kPackedA, 2, 1, true);
  pack();
  EXPECT_EQ(in_piece<kernels::SampleRow>(layout.samples)[0].banned_count, 0) << "two tokens are out";
  EXPECT_EQ(in_piece<kernels::SampleRow>(layout.samples)[0].banned, nullptr);
}

TEST_F(StepPackerTest, GatedRowsArePaddingUntilTheirMasksAreThere) {
  for (const SlotRef slot : {kPackedA, kPackedB}) {
    plans.start(slot, 1, 1, {}, {}, {{7, 1.5f}})
        .ids(slot, 0, {4})
        .blocks(slot, 0, {static_cast<BlockId>(slot.slot)});
  }
  plans.row(kPackedA, 0, 1, true).gated_row(kPackedB, 0, 1);
  const PackedStep packed = pack();
  EXPECT_EQ(packed.gated, 1);
  EXPECT_EQ(packed.samples, 2);
  EXPECT_TRUE(packed.decode) << "a graph serves it";
  const auto* samples = in_piece<kernels::SampleRow>(layout.samples);
  EXPECT_EQ(samples[0].logits_row, 0);
  EXPECT_EQ(samples[1].logits_row, -1);
  EXPECT_EQ(samples[1].next, memory.sequences.sampled + kPackedB.slot);
  EXPECT_EQ(samples[1].bias_count, 1);
  EXPECT_NE(samples[1].bias, nullptr);
  EXPECT_EQ(in_piece<std::int32_t>(layout.picks)[1], 1) << "its logits are computed";
  EXPECT_EQ(memory.clock->held, 1u) << "the step does not end";

  StepGates gates(capacity());
  test::Masks masks;
  Plans same;
  const wire::RecordView plan = same.row(kPackedA, 0, 1, true).gated_row(kPackedB, 0, 1).plan();
  gates.open(plan, *plan.as<wire::StepPlan>());
  const wire::RecordView some = masks.allow(kPackedB, {3}).masks(1);
  ASSERT_TRUE(gates.take(some, *some.as<wire::StepMasks>()).ok());
  std::vector<std::int32_t> opened(3, 7);
  StepPacker::pack_gates(batch, gates, 1, {opened, {}});
  EXPECT_EQ(opened, (std::vector<std::int32_t>{kernels::kClosedGate, 0, 7}));

  memory.clock->held = 0;
  EXPECT_EQ(pack().gated, 0) << "a plan without rows";
  EXPECT_EQ(memory.clock->held, 0u);
}

// A decode step of a row that the host makes and of one with draft tokens, whose masks end behind the first.
TEST(StepPackerGates, OpenWherePlacesHaveMasksAndSayWhatIsForced) {
  wire::Capacity limits = capacity();
  limits.max_drafts = limits.max_proposed = 3;
  limits.max_sampled = 12;
  WorkerSequences table(3, {}, nullptr, {{1, 2, 4}, 12});
  StepBatch batch;
  Plans plans;
  for (const SlotRef slot : {kPackedA, kPackedB}) {
    const bool drafts = slot == kPackedB;
    plans.start(slot, 2, 2, {}, {}, {}, drafts ? 50 : 0, drafts ? 3 : 0).ids(slot, 0, {4, 5});
    plans.blocks(slot, 0, {static_cast<BlockId>(slot.slot)}).row(slot, 0, 2, true);
  }
  const auto apply = [&](StepGates& gates) {
    const wire::RecordView view = plans.plan();
    table.apply(view, *view.as<wire::StepPlan>(), batch);
    gates.open(view, *view.as<wire::StepPlan>());
  };
  StepGates gates(limits);
  apply(gates);
  table.commit(batch, std::vector<kernels::SampleResult>(2));
  plans.row(kPackedA, 2, 1, true).row_from_last(kPackedB, 2, 3, wire::kGated);
  apply(gates);
  ASSERT_EQ(batch.width, 4);
  ASSERT_EQ(batch.proposing.size(), 1u);
  test::Masks masks;
  const wire::RecordView some = masks.add(kPackedB, wire::MaskForm::all, {}, 1)
                                    .add(kPackedB, wire::MaskForm::allowed, {3}, 0, {7, 8})
                                    .masks(2);
  ASSERT_TRUE(gates.take(some, *some.as<wire::StepMasks>()).ok());
  EXPECT_EQ(gates.masks(2).size(), 3 * gates.mask_words());
  std::vector<std::int32_t> opened(8, 7);
  std::vector<kernels::ProposingSequence> proposing(3);
  StepPacker::pack_gates(batch, gates, 2, {opened, proposing});
  constexpr std::int32_t kClosed = kernels::kClosedGate;
  EXPECT_EQ(opened, (std::vector<std::int32_t>{kClosed, kClosed, kClosed, kClosed, kernels::kGateWithoutMask,
                                               1, kClosed, kClosed}));
  EXPECT_EQ(proposing[0].sample, 4);
  EXPECT_EQ(batch.proposing[0].derived, 0);
  EXPECT_EQ(proposing[0].derived, 1) << "the yields of a decode step lie at the sequences' indices";
  EXPECT_EQ(proposing[0].masks, 2);
  EXPECT_EQ(proposing[0].forced_count, 2);
  EXPECT_EQ(proposing[0].forced[1], 8);
}

TEST_F(StepPackerTest, ScoredRowsAreNumberedWithinTheirGroup) {
  plans.start(kPackedA, 8, 8, {.prompt_logprobs = 1})
      .ids(kPackedA, 0, {0, 1, 2, 3, 4, 5, 6, 7})
      .blocks(kPackedA, 0, {0});
  const PackedStep packed = (plans.row(kPackedA, 0, 8, true), pack());
  EXPECT_EQ(packed.scores, 7);
  EXPECT_FALSE(packed.decode);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(memory.sequences.scores[i].logits_row, i % 3);
    EXPECT_EQ(memory.sequences.scores[i].token, i + 1);
    EXPECT_EQ(memory.sequences.score_picks[i], i);
  }
}

TEST_F(StepPackerTest, WhatComesLateIsLeftOut) {
  plans.start(kPackedA, 2, 2).ids(kPackedA, 0, {1, 2}).blocks(kPackedA, 0, {0}).row(kPackedA, 0, 2, true);
  pack();
  const SlotRef next{0, 2};
  plans.finish(kPackedA).start(next, 1, 1).ids(next, 0, {9}).blocks(next, 0, {1});
  plans.ids(kPackedA, 0, {77, 77}).row(kPackedA, 2, 1, true).row(next, 0, 1, true);
  const PackedStep packed = pack();
  EXPECT_EQ(packed.rows, 1);
  EXPECT_TRUE(packed.decode);
  EXPECT_EQ(in_piece<kernels::InputRow>(layout.rows)[0].token, 9);
}

TEST_F(StepPackerTest, TheFullestRecordFitsAPiece) {
  // As many runs as a record holds, each of one id.
  constexpr int kRuns = 4000;
  plans.start(kPackedA, kRuns, kRuns, {.prompt_logprobs = 0});
  for (int i = 0; i < kRuns; ++i) plans.ids(kPackedA, i, {i % 1000});
  plans.blocks(kPackedA, 0, std::vector<BlockId>(64, 3)).row(kPackedA, 0, kRuns, true);
  const PackedStep packed = pack();
  EXPECT_EQ(packed.scores, kRuns - 1);
  for (int i = 0; i < kRuns; ++i) ASSERT_EQ(in_piece<kernels::InputRow>(layout.rows)[i].token, i % 1000);
}

wire::Capacity seeing_capacity() {
  wire::Capacity made = capacity();
  made.media_tokens = made.max_model_len;
  return made;
}

constexpr VisionSpec kVision{
    .patch = 90, .image_start = 91, .image_end = 92, .video_start = 93, .video_end = 94};

class SeeingStepPackerTest : public StepPackerTest {
 protected:
  SeeingStepPackerTest() : StepPackerTest(seeing_capacity(), kVision) {}
};

// An image of 2 × 3 tokens between its boundaries, and text around it.
TEST_F(SeeingStepPackerTest, RowsOfAnItemHavePositionsKindsAndEmbeddings) {
  const std::vector<TokenId> ids{5, 91, 90, 90, 90, 90, 90, 90, 92, 6};
  table.announce(kPackedA, {{MediaKind::image, {1, 4, 6}, 2}});
  plans.start(kPackedA, 10, 10).ids(kPackedA, 0, ids).blocks(kPackedA, 0, {9}).row(kPackedA, 0, 10, true);
  plans.start(kPackedB, 3, 3).ids(kPackedB, 0, {1, 2, 3}).blocks(kPackedB, 0, {8}).row(kPackedB, 0, 3, true);
  const PackedStep packed = pack();
  EXPECT_TRUE(packed.spatial && packed.sees);
  EXPECT_FALSE(packed.decode);
  const std::vector<std::array<int, 3>> at{{0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {2, 2, 3}, {2, 2, 4},
                                           {2, 3, 2}, {2, 3, 3}, {2, 3, 4}, {5, 5, 5}, {6, 6, 6},
                                           {0, 0, 0}, {1, 1, 1}, {2, 2, 2}};
  const std::vector<int> kinds{0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
  for (std::size_t r = 0; r < at.size(); ++r) {
    for (std::size_t axis = 0; axis < 3; ++axis)
      EXPECT_EQ(memory.sequences.positions[3 * r + axis], at[r][axis]) << r << " " << axis;
    EXPECT_EQ(memory.sequences.kinds[r], kinds[r]) << r;
  }
  ASSERT_EQ(packed.embedded.size(), 1u);
  EXPECT_EQ(packed.embedded[0].row, 2);
  EXPECT_EQ(packed.embedded[0].count, 6);

  // What is generated is text at one position, behind the item's largest: a step as any other.
  plans.row(kPackedA, 10, 1, true).row(kPackedB, 3, 1, true);
  const PackedStep next = pack();
  EXPECT_TRUE(next.decode);
  EXPECT_FALSE(next.spatial || next.sees);
  EXPECT_TRUE(next.embedded.empty());
  EXPECT_EQ(next.deltas, 0);
  EXPECT_EQ(in_piece<kernels::InputRow>(layout.rows)[0].position, 7);
  EXPECT_EQ(in_piece<kernels::InputRow>(layout.rows)[1].position, 3);
  EXPECT_EQ(in_piece<kernels::KvSlot>(layout.slots)[0].offset, 10) << "its place in memory is another matter";
}

// One row, which samples, as a decode step's would.
TEST_F(SeeingStepPackerTest, ABoundaryAtTheEndIsNoDecodeStep) {
  table.announce(kPackedA, {{MediaKind::image, {1, 2, 2}, 1}});
  plans.start(kPackedA, 3, 3)
      .ids(kPackedA, 0, {91, 90, 92})
      .blocks(kPackedA, 0, {9})
      .row(kPackedA, 0, 2, false);
  EXPECT_TRUE(pack().sees);
  plans.row(kPackedA, 2, 1, true);
  const PackedStep packed = pack();
  EXPECT_TRUE(packed.sees);
  EXPECT_FALSE(packed.spatial || packed.decode);
  EXPECT_EQ(memory.sequences.kinds[0], 1);
}

TEST_F(SeeingStepPackerTest, TheFullestStepFitsAPiece) {
  const int rows = seeing_capacity().max_tokens_per_step;
  std::vector<TokenId> ids(static_cast<std::size_t>(rows), 90);
  std::vector<BlockId> blocks_of(static_cast<std::size_t>(rows / 64));
  std::iota(blocks_of.begin(), blocks_of.end(), 100);
  table.announce(kPackedA, {{MediaKind::image, {1, 128, 128}, 0}});
  plans.start(kPackedA, rows, rows, {.prompt_logprobs = 30})
      .ids(kPackedA, 0, ids)
      .blocks(kPackedA, 0, blocks_of);
  plans.row(kPackedA, 0, rows, true);
  const PackedStep packed = pack();
  EXPECT_TRUE(packed.spatial && packed.sees);
  EXPECT_EQ(packed.scores, rows - 1);
  EXPECT_EQ(memory.sequences.kinds[rows - 1], 1);
  EXPECT_EQ(memory.sequences.positions[3 * rows - 1], 63);
}

}  // namespace
}  // namespace troupe::model
