#pragma once
// An engine for tests of sessions: it yields what its script says of each sequence, a token a step, whatever
// engines before it have yielded, as sampling by output position does.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "actors/messages.h"

namespace troupe::testing {

/// What a model says to the sequences of a request. Lasts longer than an engine.
struct Script {
  struct Line {
    std::vector<TokenId> ids;
    Finish end = Finish::stop;
  };
  std::vector<Line> lines;                    ///< by the sequence's number in the first Submit
  std::map<RequestKey, std::size_t> numbers;  ///< of sequences that were submitted
  static constexpr std::int32_t kScoresPerStep = 3;
};

class ScriptedEngine {
 public:
  explicit ScriptedEngine(Script& script) : script_(script) {}

  void submit(const Submit& submit) {
    for (const SequenceSpec& spec : submit.sequences) {
      const std::size_t number = script_.numbers.try_emplace(spec.key, script_.numbers.size()).first->second;
      const std::vector<TokenId>& ids = script_.lines.at(number).ids;
      EXPECT_LT(spec.output.size(), ids.size()) << "it has ended";
      EXPECT_TRUE(std::equal(spec.output.begin(), spec.output.end(), ids.begin()));
      EXPECT_EQ(spec.prompt.empty(), spec.parent != RequestKey{});
      if (!spec.prompt.empty()) {
        EXPECT_EQ(static_cast<std::int32_t>(spec.prompt.size()), spec.prompt_tokens);
      }
      if (!spec.prompt.empty()) leader_ = spec.key;
      EXPECT_EQ(spec.parent, spec.prompt.empty() ? leader_ : RequestKey{})
          << "its parent was submitted before";
      const bool scores = spec.sampling.prompt_logprobs >= 0;
      running_.push_back({spec, number, submit.attempt, static_cast<std::int32_t>(spec.output.size()),
                          scores ? std::max(1, spec.scored) : spec.prompt_tokens,
                          spec.output.empty() && spec.scored == 0 ? 2 : 66});
    }
  }

  void cancel(const std::vector<RequestKey>& keys) {
    for (const RequestKey& key : keys) {
      const auto gone = std::erase_if(running_, [&](const Running& one) { return one.spec.key == key; });
      EXPECT_EQ(gone, 1u) << "of a sequence that this engine does not run";
    }
  }

  /// It does not run this sequence, if it ever did.
  void forget(const RequestKey& key) {
    std::erase_if(running_, [&](const Running& one) { return one.spec.key == key; });
  }

  bool idle() const { return running_.empty(); }

  /// The next token of every sequence; of one whose prompt's scores are wanted first those, some in a step.
  StepTokens step() {
    StepTokens out;
    for (Running& one : running_) {
      const std::vector<TokenId>& ids = script_.lines[one.number].ids;
      SequenceTokens entry;
      entry.key = one.spec.key;
      entry.attempt = one.attempt;
      entry.position = one.tokens;
      entry.first_token = static_cast<std::int32_t>(out.tokens.size());
      entry.first_score = static_cast<std::int32_t>(out.scores.size());
      entry.scheduled_ns = one.reported ? 0 : 1'000'000 * (one.attempt + 1);
      entry.cached_tokens = one.reported ? 0 : one.cached;
      one.reported = true;
      for (int i = 0; i < Script::kScoresPerStep && one.scored < one.spec.prompt_tokens; ++i) {
        score(out, one.scored++, 'p', one.spec.sampling.prompt_logprobs);
      }
      if (one.scored == one.spec.prompt_tokens) {
        const TokenId id = ids[static_cast<std::size_t>(one.tokens)];
        if (one.spec.sampling.logprobs >= 0) {
          score(out, one.spec.prompt_tokens + one.tokens, id, one.spec.sampling.logprobs,
                static_cast<float>(one.number));
        }
        out.tokens.push_back(id);
        ++one.tokens;
        entry.tokens = 1;
        if (one.tokens == static_cast<std::int32_t>(ids.size())) {
          entry.finish = script_.lines[one.number].end;
        } else if (one.tokens >= one.spec.max_output_tokens) {
          entry.finish = Finish::length;
        }
      }
      entry.scores = static_cast<std::int32_t>(out.scores.size()) - entry.first_score;
      one.ended = entry.finish != Finish::none;
      out.sequences.push_back(entry);
    }
    std::erase_if(running_, [](const Running& one) { return one.ended; });
    return out;
  }

 private:
  struct Running {
    SequenceSpec spec;
    std::size_t number = 0;
    std::uint32_t attempt = 0;
    std::int32_t tokens = 0;
    std::int32_t scored = 0;
    std::int32_t cached = 0;
    bool reported = false;
    bool ended = false;
  };

  static void score(StepTokens& out, std::int32_t position, TokenId id, std::int32_t tops, float of = 0) {
    const auto at = static_cast<float>(position);
    out.scores.push_back(
        {position, {id, -0.125f * at - of}, static_cast<std::int32_t>(out.tops.size()), tops});
    for (std::int32_t i = 0; i < tops; ++i) out.tops.push_back({'a' + i, -0.5f * at - static_cast<float>(i)});
  }

  Script& script_;
  RequestKey leader_;
  std::vector<Running> running_;
};

}  // namespace troupe::testing
