#pragma once
// A small engine for tests of executors: runs sequences together with two plans in flight, in chunks and
// blocks of the test's choosing, and gives back what each one generated.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "model/executor.h"
#include "model/support/plans.h"
#include "support/patience.h"

namespace troupe::model::test {

struct Ask {
  std::vector<TokenId> prompt;
  int outputs = 0;
  wire::Sampling sampling{};
  std::vector<TokenId> stop_ids{};
  std::vector<wire::LogitBias> bias{};
  int chunk = 1 << 20;                    ///< most prompt tokens in one step
  std::vector<BlockId> blocks;            ///< enough for the whole sequence
  std::vector<BlockId> second;            ///< blocks after the recompute
  int recompute_after = -1;               ///< outputs after which it is started anew with all its tokens
  int again_after = -1;                   ///< outputs after which the last two are dropped and sampled again
  int starts_at = 1;                      ///< step of its first row
  int gated_from = -1;                    ///< outputs before the first that waits for a mask; -1: none waits
  std::function<bool(TokenId)> allows{};  ///< what these masks allow
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;                    ///< of the tokens, when asked for
  std::map<int, wire::Logprob> prompt_logprobs;   ///< by position
  std::map<int, std::vector<wire::Logprob>> top;  ///< by position
};

class Engine {
 public:
  /// A step's masks are sent when the result of the step before has come, as GRAMMAR sends them.
  explicit Engine(Executor& executor) : executor_(executor) {}

  std::vector<Answer> run(const std::vector<Ask>& asks) {
    states_.clear();
    answers_.assign(asks.size(), {});
    for (std::size_t i = 0; i < asks.size(); ++i) {
      states_.push_back({&asks[i], {static_cast<std::uint32_t>(i), ++generation_}});
    }
    int in_flight = 0;
    for (int step = 1;; ++step) {
      const bool planned = submit(step);
      in_flight += planned;
      const bool more = std::any_of(states_.begin(), states_.end(), [](const State& s) { return !s.over; });
      if (in_flight == 0 && !more) return answers_;
      if (in_flight == 2 || (!planned && in_flight > 0)) {
        poll();
        --in_flight;
      }
      if (step > 100'000) {
        ADD_FAILURE() << "no progress";
        return answers_;
      }
    }
  }

 private:
  struct State {
    const Ask* ask = nullptr;
    SlotRef slot{};
    bool started = false;
    bool over = false;
    bool recomputed = false;
    bool repeated = false;  // what again_after asks for
    int known = 0;          // tokens that travelled as ids
    int position = 0;       // planned so far
    int expected = 0;       // tokens when all plans have come back
    int in_flight = 0;
  };

  int length(const State& s) const { return static_cast<int>(s.ask->prompt.size()); }

  void start(State& s, Answer& answer) {
    std::vector<TokenId> ids = s.ask->prompt;
    ids.insert(ids.end(), answer.tokens.begin(), answer.tokens.end());
    s.known = s.expected = static_cast<int>(ids.size());
    s.position = 0;
    s.started = true;
    plans_.start(s.slot, length(s), s.known, s.ask->sampling, s.ask->stop_ids, s.ask->bias);
    plans_.ids(s.slot, 0, ids);
    plans_.blocks(s.slot, 0, s.recomputed ? s.ask->second : s.ask->blocks);
  }

  bool submit(int step) {
    bool any = false;
    std::vector<std::size_t> rows, gated;
    int budget = executor_.capacity().max_tokens_per_step;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      State& s = states_[i];
      if (s.over || step < s.ask->starts_at) continue;
      const int outputs = s.started ? s.expected - length(s) : 0;
      if (outputs == s.ask->outputs) {
        if (s.in_flight > 0) continue;
        plans_.finish(s.slot);
        s.over = any = true;
        continue;
      }
      if (!s.recomputed && outputs == s.ask->recompute_after) {
        if (s.in_flight > 0) continue;  // its tokens have to be known here
        plans_.finish(s.slot);
        s.slot.generation = ++generation_;
        s.recomputed = true;
        s.started = false;
      }
      bool again = false;
      if (!s.repeated && s.started && outputs == s.ask->again_after) {
        if (s.in_flight > 0) continue;
        answers_[i].tokens.resize(answers_[i].tokens.size() - 2);
        s.expected -= 2;
        s.position = s.expected - 1;
        again = s.repeated = true;
      }
      if (!s.started) start(s, answers_[i]);
      const int tokens = std::min({s.expected - s.position, s.ask->chunk, budget});
      if (tokens <= 0) continue;
      const bool samples = s.position + tokens == s.expected;
      if (samples && s.ask->gated_from >= 0 && outputs_at(s) >= s.ask->gated_from) {
        plans_.gated_row(s.slot, s.position, tokens);
        gated.push_back(i);
      } else if (again) {
        plans_.again_row(s.slot, s.position, tokens);
      } else {
        plans_.row(s.slot, s.position, tokens, samples);
      }
      budget -= tokens;
      s.position += tokens;
      s.expected += samples;
      ++s.in_flight;
      rows.push_back(i);
      any = true;
    }
    if (!any) return false;
    rows_.push_back(std::move(rows));
    gated_.push_back(std::move(gated));
    const Status status = executor_.submit(plans_.plan());
    EXPECT_TRUE(status.ok()) << status.message;
    if (rows_.size() == 1) send_masks();
    return status.ok();
  }

  int outputs_at(const State& s) const { return s.expected - length(s); }

  /// Of the oldest step, first those of every other row.
  void send_masks() {
    const std::vector<std::size_t>& gated = gated_.front();
    ++oldest_step_;
    if (gated.empty()) return;
    EXPECT_FALSE(*executor_.poll(bytes_, Clock::now())) << "its masks are missing";
    for (const std::size_t part : {0u, 1u}) {
      for (std::size_t g = part; g < gated.size(); g += 2) {
        const State& s = states_[gated[g]];
        std::vector<std::uint32_t> ids;
        for (TokenId id = 0; id < executor_.capacity().vocab_size; ++id) {
          if (s.ask->allows(id)) ids.push_back(static_cast<std::uint32_t>(id));
        }
        masks_.allow(s.slot, ids);
      }
      const Status status = executor_.submit(masks_.masks(oldest_step_));
      EXPECT_TRUE(status.ok()) << status.message;
    }
  }

  State* find(SlotRef slot) {
    const auto found =
        std::find_if(states_.begin(), states_.end(), [&](const State& s) { return s.slot == slot; });
    return found == states_.end() ? nullptr : &*found;
  }

  void poll() {
    const Result<bool> got = executor_.poll(bytes_, Clock::now() + troupe::test::kPatience);
    ASSERT_TRUE(got.ok()) << got.status().message;
    ASSERT_TRUE(*got);
    const wire::RecordView view = open_view(bytes_);
    const auto* result = view.as<wire::StepResult>();
    ASSERT_NE(result, nullptr);
    const auto tokens = view.array(result->tokens);
    for (const wire::TokenLogprobs& l : view.array(result->logprobs)) take_logprobs(view, l);
    for (const wire::ResultRow& row : view.array(result->rows)) {
      ASSERT_EQ(row.error, wire::RowError::none);
      ASSERT_EQ(row.count, 1);
      State* s = find(row.slot);
      ASSERT_NE(s, nullptr);
      answers_[static_cast<std::size_t>(s - states_.data())].tokens.push_back(
          tokens[static_cast<std::size_t>(row.first)]);
    }
    for (const std::size_t i : rows_.front()) --states_[i].in_flight;
    rows_.pop_front();
    gated_.pop_front();
    if (!rows_.empty()) send_masks();
  }

  void take_logprobs(const wire::RecordView& view, const wire::TokenLogprobs& l) {
    State* s = find(l.slot);
    ASSERT_NE(s, nullptr);
    Answer& answer = answers_[static_cast<std::size_t>(s - states_.data())];
    const auto top = view.array(l.top);
    answer.top[l.position].assign(top.begin(), top.end());
    if (l.position < length(*s)) {
      answer.prompt_logprobs[l.position] = l.chosen;
    } else {
      answer.logprobs.push_back(l.chosen.logprob);
    }
  }

  Executor& executor_;
  Plans plans_;
  std::uint32_t generation_ = 0;
  std::vector<State> states_;
  std::vector<Answer> answers_;
  std::deque<std::vector<std::size_t>> rows_;   // which sequences have a row, per plan in flight
  std::deque<std::vector<std::size_t>> gated_;  // likewise, a gated row
  Masks masks_;
  std::uint64_t oldest_step_ = 0;  // whose masks were sent last
  std::vector<std::byte> bytes_;
};

}  // namespace troupe::model::test
