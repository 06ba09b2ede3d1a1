// Rows, tokens and ends in any order: each row is answered once, by the mask of its place.
#include "actors/grammar/grammars.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
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

GrammarStep update(std::uint64_t step, std::uint32_t epoch = 1) {
  GrammarStep out;
  out.step = step;
  out.epoch = epoch;
  return out;
}

void add_token(GrammarStep& out, RequestKey key, TokenId token) {
  out.sequences.push_back({key, static_cast<std::int32_t>(out.tokens.size()), 1});
  out.tokens.push_back(token);
}

/// The row's mask, made here.
TokenMask mask_of(const ReadyRow& row) {
  for (const TokenId token : row.follower->tokens) row.follower->constraint.accept(token);
  row.follower->tokens.clear();
  row.follower->constraint.mask(row.follower->mask);
  return row.follower->mask;
}

TEST(Grammars, ARowWaitsForTheTokensBeforeIt) {
  Grammars grammars;
  const std::uint64_t grammar = grammars.add(counting(1));
  const RequestKey key{1, 1};
  GrammarStep step = update(1);
  step.starts = {{key, grammar}};
  step.rows = {{key, {3, 7}, 0}};
  ASSERT_EQ(grammars.take(step).size(), 1u);  // the first token needs none before it
  grammars.done(key);
  step = update(2);
  step.rows = {{key, {3, 7}, 1}};
  EXPECT_TRUE(grammars.take(step).empty());
  EXPECT_EQ(grammars.waiting(), 1u);
  step = update(3);
  add_token(step, key, 50);
  step.rows = {{key, {3, 7}, 2}};
  const auto& rows = grammars.take(step);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].step, 2u);
  EXPECT_EQ(rows[0].slot, (SlotRef{3, 7}));
  EXPECT_EQ(mask_of(rows[0]).words, std::vector<std::uint32_t>{100});
  EXPECT_EQ(grammars.waiting(), 1u);
}

TEST(Grammars, ReleasedGrammarsServeTheSequencesThatHaveStarted) {
  Grammars grammars;
  const std::uint64_t grammar = grammars.add(counting(0));
  GrammarStep step = update(1);
  step.starts = {{{1, 1}, grammar}};
  grammars.take(step);
  grammars.release(grammar);
  EXPECT_EQ(grammars.grammars(), 0u);
  step = update(2);
  step.starts = {{{1, 2}, grammar}};
  step.rows = {{{1, 1}, {0, 1}, 0}, {{1, 2}, {1, 1}, 0}};
  const auto& rows = grammars.take(step);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].mask, ReadyRow::Mask::make);
  EXPECT_EQ(rows[1].mask, ReadyRow::Mask::all);
}

TEST(Grammars, RowsOfAnOlderEpochAreNotWaitedFor) {
  Grammars grammars;
  const std::uint64_t grammar = grammars.add(counting(0));
  GrammarStep step = update(5);
  step.starts = {{{1, 1}, grammar}};
  step.rows = {{{1, 1}, {0, 1}, 1}};
  EXPECT_TRUE(grammars.take(step).empty());
  EXPECT_TRUE(grammars.take(update(0, 2)).empty());
  EXPECT_EQ(grammars.waiting(), 0u);
  step = update(1, 2);
  step.rows = {{{1, 1}, {0, 1}, 0}};  // the sequence is computed again and asks for the same place
  EXPECT_EQ(grammars.take(step).size(), 1u);
}

TEST(Grammars, RandomInterleavings) {
  std::mt19937 random(5);
  const auto below = [&](unsigned n) { return random() % n; };
  struct Model {
    std::int32_t budget = 0, sampled = 0, reported = 0, asked = 0;
    SlotRef slot;
    bool grammar = true;
  };
  MaskFiller filler(2, [] {});
  for (int round = 0; round < 40; ++round) {
    Grammars grammars;
    std::map<std::uint64_t, Model> alive;                                  // by key.lo
    std::map<std::pair<std::uint64_t, std::uint32_t>, TokenMask> awaited;  // step and slot → mask
    std::uint64_t next_key = 1, step_number = 0;
    std::uint32_t epoch = 1, next_slot = 0;
    for (int i = 0; i < 600; ++i) {
      if (below(120) == 0) {  // the worker died: what was sampled and not reported is lost
        ++epoch;
        step_number = 0;
        awaited.clear();
        for (auto& [key, model] : alive) model.sampled = model.asked = model.reported;
      }
      GrammarStep step = update(++step_number, epoch);
      if (alive.size() < 12 && below(3) == 0) {
        Model model{static_cast<std::int32_t>(below(4)), 0, 0, 0, {next_slot++, 1}, below(6) != 0};
        if (model.grammar) step.starts.push_back({{0, next_key}, grammars.add(counting(model.budget))});
        alive[next_key++] = model;
      }
      std::map<std::pair<std::uint64_t, std::uint32_t>, TokenMask> due;
      for (auto it = alive.begin(); it != alive.end();) {
        auto& [key, model] = *it;
        if (model.reported < model.sampled && below(2) == 0) {
          add_token(step, {0, key}, next_token(model.budget, model.reported));
          ++model.reported;
        }
        if (model.reported > 40 || below(60) == 0) {
          step.ends.push_back({0, key});
          for (auto& [where, mask] : awaited) {
            if (where.second == model.slot.slot) mask = {};
          }
          it = alive.erase(it);
          continue;
        }
        if (model.asked - model.reported < 2 && below(2) == 0) {  // two steps in flight
          step.rows.push_back({{0, key}, model.slot, model.asked});
          awaited[{step.step, model.slot.slot}] =
              model.grammar ? expected(model.budget, model.asked) : TokenMask{};
          ++model.asked;
          model.sampled = model.asked;
        }
        ++it;
      }
      auto& rows = grammars.take(step);
      filler.fill(rows, Clock::now() + std::chrono::minutes(5));
      for (const ReadyRow& row : rows) {
        EXPECT_NE(row.mask, ReadyRow::Mask::late);
        if (row.mask == ReadyRow::Mask::made) {
          EXPECT_TRUE(grammars.done(row.key));
        }
      }
      std::set<std::pair<std::uint64_t, std::uint32_t>> seen;
      write_masks(epoch, rows, [&](std::span<const std::byte> bytes) {
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
    // Every reported row is answered: what is left waits for tokens.
    GrammarStep last = update(++step_number, epoch);
    for (auto& [key, model] : alive) last.ends.push_back({0, key});
    const auto& rows = grammars.take(last);
    for (const ReadyRow& row : rows) EXPECT_EQ(awaited.erase({row.step, row.slot.slot}), 1u);
    EXPECT_TRUE(awaited.empty());
    EXPECT_EQ(grammars.waiting(), 0u);
    EXPECT_EQ(grammars.sequences(), 0u);
  }
}

using Mask = ReadyRow::Mask;

/// The masks of the rows, by `more`: allowed tokens, 0 where all are.
std::vector<std::pair<std::uint32_t, std::uint32_t>> written(std::span<const ReadyRow> rows) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> out;
  write_masks(1, rows, [&](std::span<const std::byte> bytes) {
    wire::RecordView view;
    ASSERT_TRUE(wire::RecordView::open(bytes, view));
    for (const wire::RowMask& row : view.array(view.as<wire::StepMasks>()->rows))
      out.emplace_back(row.more, row.form == wire::MaskForm::all ? 0 : view.array(row.words)[0]);
  });
  return out;
}

TEST(Grammars, ARowHasMasksBehindTheDraftTokensThatTheFormAllows) {
  using Masks = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  Grammars grammars;
  MaskFiller filler(1, [] {});
  const std::uint64_t grammar = grammars.add(counting(0));
  const RequestKey key{1, 1};
  GrammarStep step = update(1);
  step.starts = {{key, grammar, 2}};
  step.rows = {{key, {3, 7}, 1, 4}};
  EXPECT_TRUE(grammars.take(step).empty()) << "the row before it has not been told";
  const auto told = [&](std::vector<TokenId> tokens, std::int32_t count) {
    GrammarStep more = update(2);
    more.sequences = {{key, 0, count, static_cast<std::int32_t>(tokens.size()) - count}};
    more.tokens = std::move(tokens);
    auto& rows = grammars.take(more);
    filler.fill(rows, Clock::now() + std::chrono::minutes(1));
    for (const ReadyRow& row : rows) grammars.done(row.key);
    return rows;
  };
  EXPECT_EQ(written(told({100, 101, 102, 77, 104}, 1)), (Masks{{2, 0}, {1, 102}, {0, 103}}))
      << "the second output token is free, and 77 is not allowed";
  step = update(3);
  step.rows = {{key, {3, 7}, 2, 2}, {key, {3, 7}, 3, 4}};
  EXPECT_TRUE(grammars.take(step).empty());
  EXPECT_EQ(written(told({101, 102, 103, 104, 105}, 2)), (Masks{{1, 103}, {0, 104}}))
      << "as many as it has places";
  EXPECT_EQ(written(told({}, 0)), (Masks{{3, 103}, {2, 104}, {1, 105}, {0, 106}}))
      << "a row without tokens has come back; the draft tokens are what they were";
}

TEST(Grammars, ARowSaysWhatTheFormForcesBehindItsLastMask) {
  using Forced = std::vector<std::vector<TokenId>>;
  Grammars grammars;
  MaskFiller filler(1, [] {});
  const std::uint64_t grammar = grammars.add(counting(0));
  const RequestKey key{1, 1};
  const auto of = [&](std::uint64_t number, std::vector<TokenId> told, std::vector<MaskAsk> asks) {
    GrammarStep step = update(number);
    if (number == 1) step.starts = {{key, grammar, 2}};
    step.rows = std::move(asks);
    if (!told.empty()) step.sequences = {{key, 0, 1, static_cast<std::int32_t>(told.size()) - 1}};
    step.tokens = std::move(told);
    auto& rows = grammars.take(step);
    filler.fill(rows, Clock::now() + std::chrono::minutes(1));
    for (const ReadyRow& row : rows) grammars.done(row.key);
    Forced out;
    write_masks(1, rows, [&](std::span<const std::byte> bytes) {
      wire::RecordView view;
      ASSERT_TRUE(wire::RecordView::open(bytes, view));
      for (const wire::RowMask& mask : view.array(view.as<wire::StepMasks>()->rows)) {
        const auto forced = view.array(mask.forced);
        out.emplace_back(forced.begin(), forced.end());
      }
    });
    return out;
  };
  EXPECT_EQ(of(1, {}, {{key, {3, 7}, 0, 1, 4}}), Forced{{}}) << "what is sampled there is free";
  EXPECT_EQ(of(2, {100, 101}, {{key, {3, 7}, 1, 4, 3}}), (Forced{{}, {102, 103, 104}}));
  EXPECT_EQ(of(3, {101}, {{key, {3, 7}, 2, 4, 0}}), Forced{{}}) << "none is wanted";
}

TEST(Grammars, ALateSequenceIsVoidUntilItsRowIsAskedForAgain) {
  Grammars grammars;
  const std::uint64_t grammar = grammars.add(counting(0));
  const RequestKey key{1, 1};
  GrammarStep step = update(1);
  step.starts = {{key, grammar}};
  step.rows = {{key, {3, 7}, 0}};
  ASSERT_EQ(grammars.take(step).at(0).mask, Mask::make);
  step = update(2);
  step.rows = {{key, {3, 7}, 1}};  // planned before anybody knew that the first is late
  EXPECT_TRUE(grammars.take(step).empty());
  std::vector<ReadyRow> in_vain;
  grammars.late(key, in_vain);
  ASSERT_EQ(in_vain.size(), 1u);
  EXPECT_EQ(in_vain[0].step, 2u);
  EXPECT_EQ(in_vain[0].mask, Mask::all);
  step = update(3);
  step.rows = {{key, {3, 7}, 2}};
  ASSERT_EQ(grammars.take(step).at(0).mask, Mask::all) << "so was this one";
  step = update(4);
  step.rows = {{key, {3, 7}, 0}};
  ASSERT_EQ(grammars.take(step).at(0).mask, Mask::late) << "asked for again, and still not made";
  EXPECT_TRUE(grammars.made(key));
  step = update(5);
  step.rows = {{key, {3, 7}, 0}};
  ASSERT_EQ(grammars.take(step).at(0).mask, Mask::made);
  EXPECT_FALSE(grammars.done(key)) << "it was not made for this row";
  step = update(6);
  step.rows = {{key, {3, 7}, 1}};
  EXPECT_TRUE(grammars.take(step).empty()) << "waits for its token like any other";
  step = update(7);
  add_token(step, key, 100);
  const auto& rows = grammars.take(step);
  ASSERT_EQ(rows.at(0).mask, Mask::make);
  EXPECT_EQ(rows[0].follower->tokens, std::vector<TokenId>{100});
}

TEST(Grammars, WhatWasLateInAnotherEpochIsMadeForThisOne) {
  Grammars grammars;
  const std::uint64_t grammar = grammars.add(counting(0));
  const RequestKey key{1, 1};
  GrammarStep step = update(1);
  step.starts = {{key, grammar}};
  step.rows = {{key, {3, 7}, 0}};
  grammars.take(step);
  std::vector<ReadyRow> in_vain;
  grammars.late(key, in_vain);
  step = update(1, 2);
  step.rows = {{key, {0, 1}, 0}};
  EXPECT_EQ(grammars.take(step).at(0).mask, Mask::late);
  EXPECT_TRUE(grammars.made(key));
  step = update(2, 2);
  step.ends = {key};
  step.rows = {{key, {0, 1}, 0}};
  EXPECT_EQ(grammars.take(step).at(0).mask, Mask::all);
  EXPECT_FALSE(grammars.made(key)) << "it has ended";
}

TEST(FormAccount, ARequestEndsWhenItsMasksTakeTooMuchInAll) {
  FormAccount modest, costly, shared;
  modest.add_sequence();
  costly.add_sequence();
  for (int i = 0; i < 128; ++i) shared.add_sequence();
  int masks = 0;
  while (masks < 1000 && costly.charge(100'000'000)) ++masks;
  EXPECT_GT(masks, 10);
  EXPECT_LT(masks, 50);
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(modest.charge(i % 20 == 0 ? 40'000'000 : 100'000)) << i;
  for (int i = 0; i < 128; ++i) ASSERT_TRUE(shared.charge(40'000'000)) << "one costly mask of each choice";
}

class SlowMasks : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRows = 64;

  void start(std::shared_ptr<const grammar::ConstraintSpec> spec, std::uint32_t rows,
             std::uint64_t first_key) {
    GrammarStep step = update(++step_);
    const std::uint64_t grammar = grammars_.add(std::move(spec));
    for (std::uint32_t i = 0; i < rows; ++i) {
      step.starts.push_back({{1, first_key + i}, grammar});
      step.rows.push_back({{1, first_key + i}, {static_cast<std::uint32_t>(first_key) + i, 1}, 0});
    }
    rows_ = grammars_.take(step);
  }

  static std::size_t count(const std::vector<ReadyRow>& rows, Mask mask) {
    return static_cast<std::size_t>(
        std::count_if(rows.begin(), rows.end(), [&](const ReadyRow& row) { return row.mask == mask; }));
  }

  Grammars grammars_;
  std::uint64_t step_ = 0;
  std::vector<ReadyRow> rows_;
};

// Whatever is in the masks of a step, it waits no longer than it may, and every mask is made in the end.
TEST_F(SlowMasks, AStepWaitsNoLongerThanItMay) {
  grammar::ThinkingRule rule{kEnd, true, -1, {}};
  rule.denied.resize(4'000'000);  // copied for each mask: some milliseconds
  start(std::make_shared<grammar::ConstraintSpec>(grammar::ConstraintSpec{nullptr, rule, {0}, 1000}), kRows,
        1);
  std::mutex mutex;
  std::condition_variable more;
  int notices = 0;
  MaskFiller filler(1, [&] {
    const std::lock_guard lock(mutex);
    ++notices;
    more.notify_one();
  });
  filler.fill(rows_, Clock::now());
  EXPECT_GE(count(rows_, Mask::late), kRows - 2) << "the time is over before it begins";
  EXPECT_EQ(count(rows_, Mask::make), 0u);
  std::size_t made = count(rows_, Mask::made);
  for (const ReadyRow& row : rows_) {
    if (row.mask == Mask::made) {
      EXPECT_EQ(row.follower->mask.words.size(), rule.denied.size());
    }
  }
  const TimePoint end = Clock::now() + std::chrono::minutes(1);
  while (made < kRows && Clock::now() < end) {
    std::unique_lock lock(mutex);
    more.wait_until(lock, end, [&] { return notices > 0; });
    notices = 0;
    lock.unlock();
    for (const auto& follower : filler.take_late()) {
      EXPECT_EQ(follower->mask.words.size(), rule.denied.size());
      EXPECT_TRUE(grammars_.made(follower->key));
      follower->mask.words = {};
      ++made;
    }
  }
  EXPECT_EQ(made, kRows);
}

// Those that took long the last time are not waited for; the others do not wait behind them.
TEST_F(SlowMasks, OthersDoNotWaitBehindThem) {
  start(counting(0), 8, 1);
  for (std::size_t i = 0; i < 4; ++i) rows_[i].follower->cost_ns = 3'600'000'000'000;
  MaskFiller filler(1, [] {});
  filler.fill(rows_, Clock::now() + std::chrono::minutes(1));
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(rows_[i].mask, i < 4 ? Mask::late : Mask::made) << i;
}

TEST(MaskRecords, LargeMasksGoInSeveralRecords) {
  std::vector<ReadyRow> rows;
  for (std::uint32_t i = 0; i < 100; ++i) {
    auto follower = std::make_shared<Follower>(Follower{grammar::Constraint(counting(0)), {0, i}});
    follower->mask = {TokenMask::Form::bits, std::vector<std::uint32_t>(3232, i)};
    rows.push_back({i < 90 ? 7u : 8u, {i, 1}, ReadyRow::Mask::made, std::move(follower)});
  }
  std::size_t seen = 0, records = 0;
  write_masks(3, rows, [&](std::span<const std::byte> bytes) {
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
