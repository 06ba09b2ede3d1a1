#pragma once
// Runs sequences that are held to a form, with two plans in flight, as SCHEDULER and GRAMMAR do: a row's
// masks follow the tokens before it and the draft tokens that the last result has said. One row of seven has
// fewer masks, as if more had taken too long.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "model/executor.h"
#include "model/support/engine.h"
#include "model/support/plans.h"
#include "support/patience.h"

namespace troupe::model::test {

/// A form of its own making: what it allows depends on the place and the token before it. From an id on that
/// is 1 more than a multiple of 8 it forces three tokens.
class Form {
 public:
  /// The first `free` tokens of an answer are not held to it.
  Form(int vocab, std::size_t free) : vocab_(vocab), free_(free) {}

  bool is_free(std::span<const TokenId> answer) const { return answer.size() < free_; }
  bool allows(std::span<const TokenId> answer, TokenId id) const {
    if (is_free(answer)) return true;
    const TokenId last = answer.empty() ? 0 : answer.back();
    if (forces(last)) return id == last + 1;
    return (id * 7 + last * 3 + static_cast<TokenId>(answer.size() % 2)) % 5 != 0;
  }
  /// The tokens that it forces behind an answer, at most `most`.
  std::vector<TokenId> forced(std::span<const TokenId> answer, std::size_t most) const {
    std::vector<TokenId> ids;
    if (is_free(answer) || answer.empty()) return ids;
    for (TokenId last = answer.back(); forces(last) && ids.size() < most; ++last) ids.push_back(last + 1);
    return ids;
  }
  int vocab() const { return vocab_; }

 private:
  bool forces(TokenId last) const { return last + 1 < vocab_ && last % 8 >= 1 && last % 8 <= 3; }

  const int vocab_;
  const std::size_t free_;
};

class Formed {
 public:
  /// `drafts`: of each row; 0: without speculation.
  Formed(Executor& executor, const Form& form, int drafts)
      : executor_(executor), form_(form), drafts_(drafts) {}

  int late_every = 0;  ///< one row of so many has its masks too late; 0: none
  int steps = 0, drafted = 0, accepted = 0, predicted = 0;

  std::vector<Answer> run(const std::vector<Ask>& asks,
                          const std::vector<std::vector<TokenId>>& predictions = {}) {
    executor_.reset(1);
    for (std::size_t i = 0; i < asks.size(); ++i) {
      State& s = states_.emplace_back(State{&asks[i], {static_cast<std::uint32_t>(i), 1}});
      const int prompt = length(s);
      plans_.start(s.slot, prompt, prompt, s.ask->sampling, s.ask->stop_ids, s.ask->bias,
                   drafts_ > 0 ? prompt + s.ask->outputs : 0, drafts_,
                   predictions.empty() ? std::vector<TokenId>{} : predictions[i]);
      plans_.ids(s.slot, 0, s.ask->prompt).blocks(s.slot, 0, s.ask->blocks);
    }
    for (;;) {
      const bool any = plan();
      if (::testing::Test::HasFatalFailure() || (!any && rows_.empty())) break;
      if (rows_.size() == 2 || !any) take();
    }
    std::vector<Answer> answers;
    for (State& s : states_) {
      for (const auto& [position, logprob] : s.logprobs) s.answer.logprobs.push_back(logprob);
      answers.push_back(std::move(s.answer));
    }
    return answers;
  }

 private:
  struct State {
    const Ask* ask = nullptr;
    SlotRef slot{};
    bool prompted = false;
    bool late = false;  // a mask was; until the row is run again nothing counts
    Answer answer{};
    std::map<int, float> logprobs{};
    std::vector<TokenId> proposed{};
    std::deque<int> in_flight{};  // most tokens of each row
  };
  struct Row {
    std::size_t state = 0;
    int tokens = 0;  // most masks
  };

  static int length(const State& s) { return static_cast<int>(s.ask->prompt.size()); }

  bool plan() {
    std::vector<Row> rows;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (const int tokens = next_row(states_[i]); tokens > 0) rows.push_back({i, tokens});
    }
    if (rows.empty()) return false;
    for (const Row& row : rows) states_[row.state].in_flight.push_back(row.tokens);
    const Status status = executor_.submit(plans_.plan());
    EXPECT_TRUE(status.ok()) << status.message;
    if (!status.ok()) return false;
    rows_.push_back(std::move(rows));
    ++steps;
    if (rows_.size() == 1) send_masks();
    return true;
  }

  // Plans a row. Returns the most tokens that it may yield; 0: there is none.
  int next_row(State& s) {
    const int prompt = length(s), longest = prompt + s.ask->outputs;
    const int known = prompt + static_cast<int>(s.answer.tokens.size());
    if (!s.prompted) {
      s.prompted = true;
      plans_.gated_row(s.slot, 0, prompt);
      return 1;
    }
    int most = known;
    for (const int one : s.in_flight) most += one;
    if (s.late) {
      if (!s.in_flight.empty()) return 0;
      s.late = false;
      plans_.again_row(s.slot, known - 1, 1,
                       wire::kGated | (drafts_ > 0 ? std::uint32_t{wire::kFromLast} : 0u));
      return 1;
    }
    if (known + static_cast<int>(s.in_flight.size()) >= longest) return 0;
    if (drafts_ == 0) {
      plans_.gated_row(s.slot, most - 1, 1);
      return 1;
    }
    const int position = std::min(most, longest - 1) - 1;
    const int tokens = std::min(1 + drafts_, longest - 1 - position);
    plans_.row_from_last(s.slot, position, tokens, wire::kGated);
    return tokens;
  }

  // Of the oldest step.
  void send_masks() {
    ++masked_;
    for (const Row& row : rows_.front()) {
      State& s = states_[row.state];
      const bool over = static_cast<int>(s.answer.tokens.size()) == s.ask->outputs;
      if (!s.late && !over && late_every > 0 && ++asked_ % late_every == 0) s.late = true;
      if (s.late || over) {
        masks_.all(s.slot);
      } else {
        add_masks(s, ++given_ % 7 == 0 ? (row.tokens + 1) / 2 : row.tokens);
      }
    }
    const Status status = executor_.submit(masks_.masks(masked_));
    EXPECT_TRUE(status.ok()) << status.message;
  }

  void add_masks(const State& s, int places) {
    std::vector<TokenId> answer = s.answer.tokens;
    std::size_t count = 1;
    while (count < static_cast<std::size_t>(places) && count <= s.proposed.size() &&
           form_.allows(answer, s.proposed[count - 1])) {
      answer.push_back(s.proposed[count++ - 1]);
    }
    answer.resize(s.answer.tokens.size());
    for (std::size_t i = 0; i < count; ++i) {
      const auto more = static_cast<std::uint32_t>(count - 1 - i);
      std::vector<TokenId> forced;
      if (more == 0 && drafts_ > 0) forced = form_.forced(answer, static_cast<std::size_t>(1 + drafts_));
      std::vector<std::uint32_t> ids;
      for (TokenId id = 0; id < form_.vocab() && !form_.is_free(answer); ++id) {
        if (form_.allows(answer, id)) ids.push_back(static_cast<std::uint32_t>(id));
      }
      masks_.add(s.slot, form_.is_free(answer) ? wire::MaskForm::all : wire::MaskForm::allowed, ids, more,
                 forced);
      if (more > 0) answer.push_back(s.proposed[i]);
    }
  }

  void take() {
    std::vector<std::byte> bytes;
    const Result<bool> got = executor_.poll(bytes, Clock::now() + troupe::test::kPatience);
    ASSERT_TRUE(got.ok()) << got.status().message;
    ASSERT_TRUE(*got);
    const wire::RecordView view = open_view(bytes);
    const auto* result = view.as<wire::StepResult>();
    const auto tokens = view.array(result->tokens);
    for (const wire::TokenLogprobs& one : view.array(result->logprobs)) {
      State& s = states_[one.slot.slot];
      if (!s.late) s.logprobs[one.position] = one.chosen.logprob;
    }
    for (const wire::ResultRow& row : view.array(result->rows)) {
      ASSERT_EQ(row.error, wire::RowError::none);
      State& s = states_[row.slot.slot];
      s.in_flight.pop_front();
      if (s.late) continue;
      const auto some = tokens.subspan(static_cast<std::size_t>(row.first));
      for (const TokenId id : some.first(static_cast<std::size_t>(row.count))) {
        EXPECT_TRUE(form_.allows(s.answer.tokens, id)) << "slot " << row.slot.slot << ", token " << id;
        s.answer.tokens.push_back(id);
      }
      if (row.count > 0) {
        const auto said =
            some.subspan(static_cast<std::size_t>(row.count), static_cast<std::size_t>(row.proposed));
        s.proposed.assign(said.begin(), said.end());
      }
      drafted += row.drafts;
      predicted += row.predicted != 0 ? row.drafts : 0;
      accepted += std::max(0, row.count - 1);
    }
    rows_.pop_front();
    if (!rows_.empty()) send_masks();
  }

  Executor& executor_;
  const Form& form_;
  const int drafts_;
  Plans plans_;
  Masks masks_;
  std::vector<State> states_;
  std::deque<std::vector<Row>> rows_;  // of the plans in flight
  std::uint64_t masked_ = 0;           // steps whose masks were sent
  int asked_ = 0, given_ = 0;          // rows
};

}  // namespace troupe::model::test
