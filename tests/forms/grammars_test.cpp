// Rows, tokens and ends in any order: each row is answered once, by the mask of its place.
#include "actors/grammar/grammars.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "actors/grammar/mask_filler.h"
#include "actors/grammar/mask_records.h"

namespace troupe {
namespace {

using grammar::TokenMask;

constexpr TokenId kEnd = 9;

/// After `budget` tokens the tokens 1, 2, 3, … are forced, so that a mask tells its place.
std::shared_ptr<const grammar::ConstraintSpec> counting(std::int32_t budget, int length = 64) {
  grammar::ThinkingRule rule{kEnd, true, budget, {}};
  for (int i = 0; i < length; ++i) rule.forced.push_back(100 + i);
  rule.forced.push_back(kEnd);
  return std::make_shared<grammar::ConstraintSpec>(grammar::ConstraintSpec{nullptr, rule, {0}, 1000});
}

/// What such a sequence allows after `tokens`.
TokenMask expected(std::int32_t budget, std::int32_t tokens) {
  TokenMask mask;
  if (tokens < budget) return mask;
  mask.form = TokenMask::Form::allowed;
  mask.words = {static_cast<std::uint32_t>(100 + tokens - budget)};
  return mask;
}

TokenId next_token(std::int32_t budget, std::int32_t tokens) {
  return tokens < budget ? 50 : 100 + tokens - budget;
}

GrammarStep news(std::uint64_t step, std::uint32_t epoch = 1) {
  GrammarStep out;
  out.step = step;
  out.epoch = epoch;
  return out;
}

void add_token(GrammarStep& out, RequestKey key, TokenId token) {
  out.sequences.push_back({key, static_cast<std::int32_t>(out.tokens.size()), 1});
  out.tokens.push_back(token);
}

TEST(Grammars, ARowWaitsForTheTokensBeforeIt) {
  Grammars grammars;
  const std::uint64_t grammar = grammars.add(counting(1));
  const RequestKey key{1, 1};
  GrammarStep step = news(1);
  step.starts = {{key, grammar}};
  step.rows = {{key, {3, 7}, 0}};
  ASSERT_EQ(grammars.take(step).size(), 1u);  // the first token needs none before it
  step = news(2);
  step.rows = {{key, {3, 7}, 1}};
  EXPECT_TRUE(grammars.take(step).empty());
  EXPECT_EQ(grammars.waiting(), 1u);
  step = news(3);
  add_token(step, key, 50);
  step.rows = {{key, {3, 7}, 2}};
  const auto& rows = grammars.take(step);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].step, 2u);
  EXPECT_EQ(rows[0].slot, (SlotRef{3, 7}));
  TokenMask mask;
  rows[0].constraint->mask(mask);
  EXPECT_EQ(mask.words, std::vector<std::uint32_t>{100});
  EXPECT_EQ(grammars.waiting(), 1u);
}

TEST(Grammars, ReleasedGrammarsServeTheSequencesThatHaveStarted) {
  Grammars grammars;
  const std::uint64_t grammar = grammars.add(counting(0));
  GrammarStep step = news(1);
  step.starts = {{{1, 1}, grammar}};
  grammars.take(step);
  grammars.release(grammar);
  EXPECT_EQ(grammars.grammars(), 0u);
  step = news(2);
  step.starts = {{{1, 2}, grammar}};
  step.rows = {{{1, 1}, {0, 1}, 0}, {{1, 2}, {1, 1}, 0}};
  const auto& rows = grammars.take(step);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NE(rows[0].constraint, nullptr);
  EXPECT_EQ(rows[1].constraint, nullptr);  // everything is allowed
}

TEST(Grammars, RowsOfAnOlderEpochAreNotWaitedFor) {
  Grammars grammars;
  const std::uint64_t grammar = grammars.add(counting(0));
  GrammarStep step = news(5);
  step.starts = {{{1, 1}, grammar}};
  step.rows = {{{1, 1}, {0, 1}, 1}};
  EXPECT_TRUE(grammars.take(step).empty());
  EXPECT_TRUE(grammars.take(news(0, 2)).empty());
  EXPECT_EQ(grammars.waiting(), 0u);
  step = news(1, 2);
  step.rows = {{{1, 1}, {0, 1}, 0}};  // the sequence is computed again and asks for the same place
  EXPECT_EQ(grammars.take(step).size(), 1u);
}

TEST(Grammars, RandomInterleavings) {
  std::mt19937 random(5);
  const auto below = [&](unsigned n) { return random() % n; };
  struct Model {
    std::int32_t budget = 0, sampled = 0, told = 0, asked = 0;
    SlotRef slot;
    bool grammar = true;
  };
  MaskFiller filler(2);
  for (int round = 0; round < 40; ++round) {
    Grammars grammars;
    std::map<std::uint64_t, Model> alive;                                  // by key.lo
    std::map<std::pair<std::uint64_t, std::uint32_t>, TokenMask> awaited;  // step and slot → mask
    std::uint64_t next_key = 1, step_number = 0;
    std::uint32_t epoch = 1, next_slot = 0;
    for (int i = 0; i < 600; ++i) {
      if (below(120) == 0) {  // the worker died: what was sampled and not told is lost
        ++epoch;
        step_number = 0;
        awaited.clear();
        for (auto& [key, model] : alive) model.sampled = model.asked = model.told;
      }
      GrammarStep step = news(++step_number, epoch);
      if (alive.size() < 12 && below(3) == 0) {
        Model model{static_cast<std::int32_t>(below(4)), 0, 0, 0, {next_slot++, 1}, below(6) != 0};
        if (model.grammar) step.starts.push_back({{0, next_key}, grammars.add(counting(model.budget))});
        alive[next_key++] = model;
      }
      std::map<std::pair<std::uint64_t, std::uint32_t>, TokenMask> due;
      for (auto it = alive.begin(); it != alive.end();) {
        auto& [key, model] = *it;
        if (model.told < model.sampled && below(2) == 0) {
          add_token(step, {0, key}, next_token(model.budget, model.told));
          ++model.told;
        }
        if (model.told > 40 || below(60) == 0) {
          step.ends.push_back({0, key});
          for (auto& [where, mask] : awaited) {
            if (where.second == model.slot.slot) mask = {};
          }
          it = alive.erase(it);
          continue;
        }
        if (model.asked - model.told < 2 && below(2) == 0) {  // two steps in flight
          step.rows.push_back({{0, key}, model.slot, model.asked});
          awaited[{step.step, model.slot.slot}] =
              model.grammar ? expected(model.budget, model.asked) : TokenMask{};
          ++model.asked;
          model.sampled = model.asked;
        }
        ++it;
      }
      const auto& rows = grammars.take(step);
      const auto masks = filler.fill(rows);
      std::set<std::pair<std::uint64_t, std::uint32_t>> seen;
      write_masks(epoch, rows, masks, [&](std::span<const std::byte> bytes) {
        ASSERT_LE(bytes.size(), kMaxMaskRecordBytes);
        wire::RecordView view;
        ASSERT_TRUE(wire::RecordView::open(bytes, view));
        const auto* record = view.as<wire::StepMasks>();
        ASSERT_NE(record, nullptr);
        EXPECT_EQ(view.header().epoch, epoch);
        for (const wire::RowMask& row : view.array(record->rows)) {
          const auto where = awaited.find({record->step, row.slot.slot});
          ASSERT_NE(where, awaited.end()) << "a row that nobody waits for";
          const auto words = view.array(row.words);
          EXPECT_EQ(static_cast<int>(row.form), static_cast<int>(where->second.form));
          EXPECT_TRUE(
              std::equal(words.begin(), words.end(), where->second.words.begin(), where->second.words.end()));
          awaited.erase(where);
        }
      });
    }
    // Everything that is told is answered: what is left waits for tokens.
    GrammarStep last = news(++step_number, epoch);
    for (auto& [key, model] : alive) last.ends.push_back({0, key});
    const auto& rows = grammars.take(last);
    for (const ReadyRow& row : rows) EXPECT_EQ(awaited.erase({row.step, row.slot.slot}), 1u);
    EXPECT_TRUE(awaited.empty());
    EXPECT_EQ(grammars.waiting(), 0u);
    EXPECT_EQ(grammars.sequences(), 0u);
  }
}

TEST(MaskRecords, LargeMasksGoInSeveralRecords) {
  std::vector<ReadyRow> rows;
  std::vector<TokenMask> masks;
  for (std::uint32_t i = 0; i < 100; ++i) {
    rows.push_back({i < 90 ? 7u : 8u, {i, 1}, nullptr});
    masks.push_back({TokenMask::Form::bits, std::vector<std::uint32_t>(3232, i)});
  }
  std::size_t seen = 0, records = 0;
  write_masks(3, rows, masks, [&](std::span<const std::byte> bytes) {
    ++records;
    EXPECT_LE(bytes.size(), kMaxMaskRecordBytes);
    wire::RecordView view;
    ASSERT_TRUE(wire::RecordView::open(bytes, view));
    const auto* record = view.as<wire::StepMasks>();
    ASSERT_NE(record, nullptr);
    for (const wire::RowMask& row : view.array(record->rows)) {
      EXPECT_EQ(record->step, rows[seen].step);
      EXPECT_EQ(row.slot, rows[seen].slot);
      ASSERT_EQ(view.array(row.words).size(), 3232u);
      EXPECT_EQ(view.array(row.words)[3231], seen);
      ++seen;
    }
  });
  EXPECT_EQ(seen, 100u);
  EXPECT_GE(records, 6u);
}

}  // namespace
}  // namespace troupe
