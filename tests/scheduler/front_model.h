#pragma once
// Fronts that keep what they have submitted, compare what comes with the text that each sequence must
// produce, and submit what is open again when the engine has died.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/scheduler/scheduler.h"
#include "tests/scheduler/setting.h"
#include "tests/scheduler/worker_model.h"

namespace troupe::test {

class FrontModel {
 public:
  explicit FrontModel(const Setting& setting) : setting_(setting) {}

  /// What a front keeps of a request, to submit it again.
  struct Request {
    std::uint32_t front = 0;
    Submit submit;
    std::vector<TokenId> prompt;
    std::vector<SequenceItem> media;
  };

  struct Expected {
    std::vector<TokenId> tokens;
    Finish finish = Finish::length;
    std::size_t seen = 0, token_scores = 0;
    std::uint32_t front = 0, host = 0, attempt = 0;
    bool wants_scores = false, wants_prompt_scores = false;
    std::int32_t prompt_tokens = 0, next_prompt_score = 1, losses = 0;
    bool scheduled = false;
    bool constrained = false;
  };

  /// The engine has accepted the request.
  void add(Request request) {
    SequenceSpec first = request.submit.sequences.front();
    first.prompt = request.prompt;
    first.media = request.media;
    for (const SequenceSpec& spec : request.submit.sequences) {
      Expected& expected = open[spec.key] = reference(first, spec.sampling.choice);
      expected.front = request.front;
      expected.host = spec.host;
    }
    requests_.push_back(std::move(request));
  }

  /// Indices of the requests that have open sequences; others are forgotten.
  std::vector<std::size_t> open_requests() {
    std::erase_if(requests_, [&](const Request& request) {
      const auto is_open = [&](const SequenceSpec& spec) { return open.contains(spec.key); };
      return std::none_of(request.submit.sequences.begin(), request.submit.sequences.end(), is_open);
    });
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < requests_.size(); ++i) all.push_back(i);
    return all;
  }
  std::uint32_t front_of(std::size_t request) const { return requests_[request].front; }

  /// What the front of a request submits to the next engine.
  Submit again(std::size_t at, bool is_alone) {
    Request& request = requests_[at];
    Submit again;
    again.prefix = request.submit.prefix;
    again.priority = request.submit.priority;
    again.arrived_ns = request.submit.arrived_ns;
    again.attempt = ++request.submit.attempt;
    again.alone = is_alone;
    for (const SequenceSpec& spec : request.submit.sequences) {
      const auto found = open.find(spec.key);
      if (found == open.end()) continue;
      Expected& e = found->second;
      e.attempt = again.attempt;
      e.scheduled = false;
      if (e.constrained) come_out[spec.key] = e.seen;
      if (is_alone) alone.insert(spec.key);
      SequenceSpec& more = again.sequences.emplace_back(spec);
      more.output.assign(e.tokens.begin(), e.tokens.begin() + static_cast<std::ptrdiff_t>(e.seen));
      more.scored = e.wants_prompt_scores && e.next_prompt_score > 1 ? e.next_prompt_score : 0;
      const bool first = again.sequences.size() == 1;
      more.prompt = first ? request.prompt : std::vector<TokenId>{};
      more.media = first ? request.media : std::vector<SequenceItem>{};
      more.parent = first ? RequestKey{} : again.sequences.front().key;
    }
    return again;
  }

  /// The tokens that the model gives when this sequence runs alone, one token at a time.
  Expected reference(const SequenceSpec& spec, std::uint32_t choice) const {
    Expected expected;
    expected.prompt_tokens = spec.prompt_tokens;
    std::uint64_t prefix = 0;
    for (std::size_t i = 0; i < spec.prompt.size(); ++i)
      prefix = extend(prefix, spec.prompt[i], spec.media, static_cast<std::int32_t>(i));
    const std::int32_t room = std::min(setting_.max_length, setting_.blocks * setting_.block_tokens);
    const std::int32_t length = std::min(spec.prompt_tokens + spec.max_output_tokens, room);
    expected.constrained = spec.grammar != 0;
    expected.wants_scores = spec.sampling.logprobs >= 0;
    expected.wants_prompt_scores = spec.sampling.prompt_logprobs >= 0;
    GrammarState grammar(spec.grammar);
    for (std::int32_t n = static_cast<std::int32_t>(spec.prompt.size()); n < length; ++n) {
      TokenId token = next_token(prefix, choice, setting_.vocab);
      if (expected.constrained && n - spec.prompt_tokens >= spec.gated_from)
        token = grammar.nearest(token, setting_.vocab);
      grammar.take(token);
      expected.tokens.push_back(token);
      prefix = extend(prefix, token);
      if (std::find(spec.stop_ids.begin(), spec.stop_ids.end(), token) != spec.stop_ids.end()) {
        expected.finish = Finish::stop;
        break;
      }
    }
    return expected;
  }

  /// Output token `output` of an open sequence; -1 if there is none.
  TokenId next(const RequestKey& key, std::int32_t output) const {
    const auto found = open.find(key);
    const auto at = static_cast<std::size_t>(output);
    return found == open.end() || at >= found->second.tokens.size() ? -1 : found->second.tokens[at];
  }

  /// Compares. `may_fail` says whether a sequence has a cause to end with an error.
  void take(const StepOutput& out, const std::function<bool(const RequestKey&)>& may_fail) {
    for (const HostTokens& host : out.hosts) {
      for (const SequenceTokens& s : host.step.sequences) {
        const auto found = open.find(s.key);
        if (found != open.end() && (host.front != found->second.front || host.host != found->second.host))
          complain("output for another session host");
        take(host.step, s, may_fail);
      }
    }
  }

  /// The first thing that went wrong, or empty.
  const std::string& complaint() const { return complaint_; }

  std::map<RequestKey, Expected> open;
  std::map<RequestKey, std::size_t> come_out;  ///< tokens of sequences with a grammar
  std::set<RequestKey> alone;                  ///< must be alone until their next token
  std::set<RequestKey> poisoned;               ///< sequences that failed as Finish::poisoned
  std::int64_t finished = 0, failed = 0, tokens = 0, scores = 0;

 private:
  void complain(const std::string& what) {
    if (complaint_.empty()) complaint_ = what;
  }

  void take(const StepTokens& host, const SequenceTokens& s,
            const std::function<bool(const RequestKey&)>& may_fail) {
    const auto found = open.find(s.key);
    if (found == open.end()) return complain("output for a sequence that has ended");
    Expected& e = found->second;
    if (s.attempt != e.attempt || s.position != static_cast<std::int32_t>(e.seen))
      complain("an entry of another attempt or position");
    if (s.tokens > 0) alone.erase(s.key);
    if ((s.scheduled_ns != 0) == e.scheduled && s.tokens > 0)
      complain("scheduled_ns comes once, with the first output");
    e.scheduled |= s.scheduled_ns != 0;
    if (e.constrained) come_out[s.key] += static_cast<std::size_t>(s.tokens);
    for (std::int32_t i = 0; i < s.tokens; ++i, ++e.seen, ++tokens) {
      const TokenId token = host.tokens[static_cast<std::size_t>(s.first_token + i)];
      if (e.seen >= e.tokens.size() || token != e.tokens[e.seen])
        complain("a token differs from the reference");
    }
    std::int32_t scored = 0;  // of its tokens
    for (std::int32_t i = 0; i < s.scores; ++i, ++scores) {
      const PositionLogprobs& score = host.scores[static_cast<std::size_t>(s.first_score + i)];
      if (score.position < e.prompt_tokens) {
        if (score.position != e.next_prompt_score++) complain("prompt logprobs are not in order, each once");
      } else if (score.position - e.prompt_tokens != static_cast<std::int32_t>(e.seen) - s.tokens + scored ||
                 scored >= s.tokens || score.tops != 2 ||
                 score.chosen.token != host.tokens[static_cast<std::size_t>(s.first_token + scored++)] ||
                 host.tops[static_cast<std::size_t>(score.first_top)].token != score.chosen.token) {
        complain("a logprob belongs to another token");
      } else {
        ++e.token_scores;
      }
    }
    if (s.finish == Finish::none) return;
    if (s.finish == Finish::error || s.finish == Finish::aborted || s.finish == Finish::poisoned) {
      ++failed;
      if (s.finish == Finish::poisoned) poisoned.insert(s.key);
      if (host.error_of(s).empty()) complain("an error without a sentence");
      if (!may_fail(s.key)) complain("an error without a cause");
    } else {
      ++finished;
      if (s.finish != e.finish || e.seen != e.tokens.size())
        complain("finished at another place than the reference");
      if (e.token_scores != (e.wants_scores ? e.seen : 0)) complain("logprobs of a token are missing");
      if (e.next_prompt_score != (e.wants_prompt_scores ? e.prompt_tokens : 1))
        complain("prompt logprobs are missing");
    }
    open.erase(found);
  }

  const Setting setting_;
  std::string complaint_;
  std::vector<Request> requests_;
};

}  // namespace troupe::test
