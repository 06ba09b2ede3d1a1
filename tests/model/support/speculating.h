#pragma once
// Runs sequences whose rows begin at their last tokens and verify drafts, with two plans in flight whose
// rows state upper bounds as the scheduler's do.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "model/checkpoint/model_files.h"
#include "model/cpu_executor.h"
#include "model/cuda/executor.h"
#include "model/executor.h"
#include "model/support/engine.h"
#include "model/support/plans.h"
#include "support/patience.h"

namespace troupe::model::test {

/// An executor for four sequences of up to 256 tokens, with 16 blocks, that speculates as the options say.
inline std::unique_ptr<Executor> make_executor_of_four(config::Options options, bool gpu) {
  options.device.cpu_threads = 2;
  const int drafts = options.speculation.tokens;
  const bool by_layer = options.speculation.method == config::DraftMethod::mtp;
  auto files = open_model(options.model, {}, options.speculation);
  EXPECT_TRUE(files.ok()) << files.status().message;
  EXPECT_EQ(files->spec.draft_layers, by_layer ? 1 : 0);
  wire::Capacity capacity;
  capacity.kv_blocks = options.device.num_gpu_blocks_override = 16;
  capacity.max_slots = options.scheduler.max_num_seqs = 4;
  capacity.max_tokens_per_step = options.scheduler.max_num_batched_tokens = 320;
  capacity.max_model_len = options.scheduler.max_model_len = 256;
  capacity.vocab_size = files->spec.vocab;
  capacity.embedding_width = files->spec.hidden;
  capacity.max_drafts = capacity.max_proposed = drafts;
  capacity.max_sampled = 4 * (1 + drafts);
  auto made = gpu ? make_cuda_executor(*files, options) : make_cpu_executor(*files, options, capacity);
  EXPECT_TRUE(made.ok()) << made.status().message;
  return std::move(*made);
}

/// Prompts run in chunks of Ask::chunk tokens.
class Speculating {
 public:
  explicit Speculating(Executor& executor) : executor_(executor) {}

  /// Draft tokens that a row verified, and how many of them were accepted.
  struct Outcome {
    int drafted = 0, accepted = 0;
  };
  /// By sequence and the tokens that it had before the row.
  using Outcomes = std::map<std::pair<std::uint32_t, int>, Outcome>;

  bool blocks_late = false;  ///< a sequence gets a block when a row needs it
  int gated = 0;             ///< so many first tokens of each sequence wait for masks, which allow all
  int from = 0;              ///< tokens of each sequence that lie in its blocks already

  /// `predictions`: what the clients predict of each answer.
  std::vector<Answer> run(const std::vector<Ask>& asks, int drafts,
                          const std::vector<std::vector<TokenId>>& predictions = {}) {
    states_.clear();
    for (std::size_t i = 0; i < asks.size(); ++i)
      states_.push_back({&asks[i], {static_cast<std::uint32_t>(i), ++generation_}, from});
    executor_.reset(1);
    plans_.restart();
    step_ = 0;
    for (State& s : states_) {
      const int prompt = length(s);
      plans_.start(s.slot, prompt, prompt, s.ask->sampling, s.ask->stop_ids, s.ask->bias,
                   prompt + s.ask->outputs, 0,
                   predictions.empty() ? std::vector<TokenId>{} : predictions[s.slot.slot]);
      plans_.ids(s.slot, 0, s.ask->prompt);
      grant(s, blocks_late ? (prompt + 63) / 64 : static_cast<int>(s.ask->blocks.size()));
    }
    do {
      bool any = false;
      for (State& s : states_) any = add(s, drafts) || any;
      if (any) send();
      if (in_flight_ == 2 || !any) take();
    } while (in_flight_ > 0 && !::testing::Test::HasFatalFailure());
    std::vector<Answer> answers;
    for (State& s : states_) answers.push_back(std::move(s.answer));
    return answers;
  }

  int steps = 0, drafted = 0, accepted = 0, predicted = 0;
  Outcomes outcomes;

 private:
  struct State {
    const Ask* ask = nullptr;
    SlotRef slot{};
    int planned = 0;  // of the prompt
    int blocks = 0;   // granted
    Answer answer{};
    std::deque<int> in_flight{};  // most tokens of each row
  };

  static int length(const State& s) { return static_cast<int>(s.ask->prompt.size()); }

  void grant(State& s, int blocks) {
    if (blocks <= s.blocks) return;
    plans_.blocks(s.slot, s.blocks, {s.ask->blocks.begin() + s.blocks, s.ask->blocks.begin() + blocks});
    s.blocks = blocks;
  }

  bool add(State& s, int drafts) {
    const int tokens = next_row(s, drafts);
    s.in_flight.push_back(std::max(0, tokens));
    return tokens >= 0;
  }

  // Plans a row. Returns the most tokens that it may yield; below 0: there is none.
  int next_row(State& s, int drafts) {
    const int longest = length(s) + s.ask->outputs,
              known = length(s) + static_cast<int>(s.answer.tokens.size());
    if (s.planned < length(s)) {
      const int tokens = std::min(s.ask->chunk, length(s) - s.planned);
      const bool samples = s.planned + tokens == length(s);
      if (samples && gated > 0)
        add_gated(s, s.planned, tokens);
      else
        plans_.row(s.slot, s.planned, tokens, samples);
      s.planned += tokens;
      return samples ? 1 : 0;
    }
    int most = known, least = known;
    for (const int one : s.in_flight) most += one, least += one > 0 ? 1 : 0;
    if (least >= longest) return -1;
    if (least - length(s) < gated) {  // all rows have yielded one token each
      grant(s, least / 64 + 1);
      add_gated(s, least - 1, 1);
      return 1;
    }
    const int position = std::min(most, longest - 1) - 1;
    grant(s, position / 64 + 1);
    const int tokens = std::min({1 + drafts, longest - 1 - position, 64 * s.blocks - position});
    plans_.row_from_last(s.slot, position, tokens);
    return tokens;
  }

  void add_gated(const State& s, int position, int tokens) {
    plans_.gated_row(s.slot, position, tokens);
    masks_.all(s.slot);
    masked_ = true;
  }

  void send() {
    const Status status = executor_.submit(plans_.plan());
    ASSERT_TRUE(status.ok()) << status.message;
    ++in_flight_;
    ++steps;
    ++step_;
    if (masked_) {
      const Status masks = executor_.submit(masks_.masks(step_));
      ASSERT_TRUE(masks.ok()) << masks.message;
    }
    masked_ = false;
  }

  void take() {
    std::vector<std::byte> bytes;
    const Result<bool> got = executor_.poll(bytes, Clock::now() + troupe::test::kPatience);
    ASSERT_TRUE(got.ok()) << got.status().message;
    ASSERT_TRUE(*got);
    --in_flight_;
    const wire::RecordView view = open_view(bytes);
    const auto* result = view.as<wire::StepResult>();
    const auto tokens = view.array(result->tokens);
    for (const wire::ResultRow& row : view.array(result->rows)) {
      ASSERT_EQ(row.error, wire::RowError::none);
      const auto some =
          tokens.subspan(static_cast<std::size_t>(row.first), static_cast<std::size_t>(row.count));
      State& s = states_[row.slot.slot];
      if (row.drafts > 0) {
        outcomes[{row.slot.slot, length(s) + static_cast<int>(s.answer.tokens.size())}] = {row.drafts,
                                                                                           row.count - 1};
      }
      s.answer.tokens.insert(s.answer.tokens.end(), some.begin(), some.end());
      drafted += row.drafts;
      predicted += row.predicted != 0 ? row.drafts : 0;
      accepted += std::max(0, row.count - 1);
    }
    for (const wire::TokenLogprobs& one : view.array(result->logprobs))
      states_[one.slot.slot].answer.logprobs.push_back(one.chosen.logprob);
    for (State& s : states_) s.in_flight.pop_front();
  }

  Executor& executor_;
  Plans plans_;
  Masks masks_;
  bool masked_ = false;
  std::vector<State> states_;
  std::uint32_t generation_ = 0;
  std::uint64_t step_ = 0;
  int in_flight_ = 0;
};

}  // namespace troupe::model::test
