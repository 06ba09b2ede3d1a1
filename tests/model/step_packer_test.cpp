// A piece is read here as the GPU's first kernel reads it, into memory that stands for the device's: what was
// packed has to arrive, whole and where the rows look for it.
#include "model/cuda/step_packer.h"

#include <gtest/gtest.h>

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
  return made;
}

class StepPackerTest : public ::testing::Test {
 protected:
  StepPackerTest() {
    const std::size_t bytes = StepMemory::make(capacity(), {}).bytes;
    device.resize(bytes / 8 + 16);
    const auto at = (reinterpret_cast<std::uintptr_t>(device.data()) + 63) / 64 * 64;
    memory = StepMemory::make(capacity(), {reinterpret_cast<void*>(at), bytes});
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
  kernels::PieceLayout layout = StepPacker::layout(capacity());
  std::vector<std::uint64_t> piece;
  Plans plans;
  PlanCheck check{capacity()};
  WorkerSequences table{3};
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
  EXPECT_EQ(in_piece<std::int32_t>(layout.picks)[1], 1) << "its logits are computed";
  EXPECT_EQ(memory.clock->held, 1u) << "the step does not end";

  StepGates gates(capacity());
  test::Masks masks;
  Plans same;
  const wire::RecordView plan = same.row(kPackedA, 0, 1, true).gated_row(kPackedB, 0, 1).plan();
  gates.open(plan, *plan.as<wire::StepPlan>());
  const wire::RecordView some = masks.allow(kPackedB, {3}).masks(1);
  ASSERT_TRUE(gates.take(some, *some.as<wire::StepMasks>()).ok());
  std::vector<kernels::SampleRow> rows(3);
  StepPacker(memory.sequences, layout, 3).pack_gated(batch, gates, 1, rows);
  EXPECT_EQ(rows[0].logits_row, -1);
  EXPECT_EQ(rows[1].logits_row, 1);
  EXPECT_EQ(rows[1].mask, memory.sequences.masks);
  EXPECT_EQ(rows[1].next, memory.sequences.sampled + kPackedB.slot);
  EXPECT_EQ(rows[1].bias_count, 1);
  EXPECT_NE(rows[1].bias, nullptr);

  memory.clock->held = 0;
  EXPECT_EQ(pack().gated, 0) << "a plan without rows";
  EXPECT_EQ(memory.clock->held, 0u);
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

}  // namespace
}  // namespace troupe::model
