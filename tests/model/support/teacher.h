#pragma once
// Teacher forcing through an executor's own records: every sequence is continued with given tokens.
//
// A sequence decodes freely, with two steps in flight, as long as it samples the given tokens. When it
// samples another one, it restarts after the given token: a new generation in the same slot uses the same
// blocks, which hold the keys and values of all earlier tokens, and computes one position. The executor sees
// an ordinary decode step after a prefix-cache hit.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "model/executor.h"
#include "model/support/plans.h"
#include "support/patience.h"

namespace troupe::model::test {

struct Lesson {
  std::vector<TokenId> prompt;
  std::vector<TokenId> continuation;
  std::vector<BlockId> blocks;  ///< enough for both
  bool scores_prompt = false;
};

struct Recital {
  std::vector<wire::Logprob> sampled;           ///< per token of the continuation: the most likely token
  std::vector<std::vector<wire::Logprob>> top;  ///< per token of the continuation: most likely first
  std::vector<float> prompt;                    ///< log-probabilities of prompt tokens 1, 2, …
  int restarts = 0;
};

class Teacher {
 public:
  /// `chunk`: most prompt tokens of a sequence in one step.
  explicit Teacher(Executor& executor, int chunk) : executor_(executor), chunk_(chunk) {}

  /// All lessons at once, a slot each. Lesson i starts at step i * stagger.
  std::vector<Recital> run(const std::vector<Lesson>& lessons, int stagger) {
    pupils_.clear();
    for (std::size_t i = 0; i < lessons.size(); ++i) {
      pupils_.push_back({.lesson = &lessons[i],
                         .slot = {static_cast<std::uint32_t>(i), 0},
                         .starts_at = static_cast<int>(i) * stagger});
    }
    int in_flight = 0;
    for (int step = 0; step < 100'000 && !::testing::Test::HasFailure(); ++step) {
      const bool submitted = submit(step);
      in_flight += submitted;
      if (in_flight == 2 || (!submitted && in_flight > 0)) {
        poll();
        --in_flight;
      } else if (in_flight == 0 && all_over()) {
        break;
      }
    }
    EXPECT_TRUE(all_over());
    std::vector<Recital> recitals;
    for (Pupil& pupil : pupils_) recitals.push_back(std::move(pupil.recital));
    return recitals;
  }

 private:
  struct Pupil {
    const Lesson* lesson = nullptr;
    SlotRef slot{};
    int starts_at = 0;
    bool has_to_start = true;
    bool over = false;
    int position = 0;  // of the next row
    int known = 0;     // tokens that exist once all planned rows have run
    Recital recital{};

    int prompt_tokens() const { return static_cast<int>(lesson->prompt.size()); }
    int outputs() const { return static_cast<int>(lesson->continuation.size()); }
    int sampled() const { return static_cast<int>(recital.sampled.size()); }
  };

  bool all_over() const {
    return std::all_of(pupils_.begin(), pupils_.end(), [](const Pupil& p) { return p.over; });
  }

  /// Starts the sequence with all tokens given so far. After a restart only the last of them is computed
  /// again.
  void start(Pupil& p) {
    const bool again = p.slot.generation > 0;
    if (again) plans_.finish(p.slot);
    p.slot.generation = ++generation_;
    std::vector<TokenId> ids = p.lesson->prompt;
    ids.insert(ids.end(), p.lesson->continuation.begin(), p.lesson->continuation.begin() + p.sampled());
    p.known = static_cast<int>(ids.size());
    p.position = p.sampled() > 0 ? p.known - 1 : 0;
    p.recital.restarts += p.sampled() > 0;
    p.has_to_start = false;
    wire::Sampling sampling{.temperature = 0, .logprobs = executor_.capacity().max_logprobs};
    sampling.prompt_logprobs = p.lesson->scores_prompt && !again ? 0 : -1;
    plans_.start(p.slot, p.prompt_tokens(), p.known, sampling);
    plans_.ids(p.slot, 0, ids);
    plans_.blocks(p.slot, 0, p.lesson->blocks);
  }

  /// Returns false if there was nothing to submit.
  bool submit(int step) {
    bool any = false;
    int budget = executor_.capacity().max_tokens_per_step;
    for (Pupil& p : pupils_) {
      if (p.over || step < p.starts_at) continue;
      if (p.sampled() == p.outputs()) {
        plans_.finish(p.slot);
        p.over = any = true;
        continue;
      }
      if (budget == 0) continue;
      if (p.has_to_start) start(p);
      const int tokens = std::min({p.known - p.position, chunk_, budget});
      if (tokens <= 0 || p.known >= p.prompt_tokens() + p.outputs()) continue;
      const bool samples = p.position + tokens == p.known;
      plans_.row(p.slot, p.position, tokens, samples);
      budget -= tokens;
      p.position += tokens;
      p.known += samples;
      any = true;
    }
    if (!any) return false;
    const Status status = executor_.submit(plans_.plan());
    EXPECT_TRUE(status.ok()) << status.message;
    return status.ok();
  }

  void poll() {
    const Result<bool> got = executor_.poll(bytes_, Clock::now() + troupe::test::kPatience);
    ASSERT_TRUE(got.ok()) << got.status().message;
    ASSERT_TRUE(*got);
    const wire::RecordView view = open_view(bytes_);
    const auto* result = view.as<wire::StepResult>();
    ASSERT_NE(result, nullptr);
    for (const wire::ResultRow& row : view.array(result->rows)) ASSERT_EQ(row.error, wire::RowError::none);
    for (const wire::TokenLogprobs& l : view.array(result->logprobs)) take(view, l);
  }

  void take(const wire::RecordView& view, const wire::TokenLogprobs& l) {
    Pupil& p = pupils_[l.slot.slot];
    if (p.slot != l.slot || p.has_to_start || p.over)
      return;  // it was computed from a token that is not the given one
    if (l.position < p.prompt_tokens()) {
      ASSERT_EQ(l.chosen.token, p.lesson->prompt[static_cast<std::size_t>(l.position)]);
      p.recital.prompt.push_back(l.chosen.logprob);
      return;
    }
    const int at = l.position - p.prompt_tokens();
    ASSERT_EQ(at, p.sampled());
    const auto top = view.array(l.top);
    p.recital.sampled.push_back(l.chosen);
    p.recital.top.emplace_back(top.begin(), top.end());
    p.has_to_start =
        l.chosen.token != p.lesson->continuation[static_cast<std::size_t>(at)] && p.sampled() < p.outputs();
  }

  Executor& executor_;
  const int chunk_;
  Plans plans_;
  std::uint32_t generation_ = 0;
  std::vector<Pupil> pupils_;
  std::vector<std::byte> bytes_;
};

}  // namespace troupe::model::test
