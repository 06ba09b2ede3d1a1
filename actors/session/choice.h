#pragma once
// One choice of an answer: turns the tokens of one sequence into text that may be sent, and remembers
// what the whole answer needs (logprobs, ids, counts, why it ended).
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/messages.h"
#include "actors/session/stop_filter.h"
#include "http/openai_response.h"
#include "text/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

/// What every choice of one request has in common.
struct ChoiceOptions {
  std::vector<std::string> stop;
  bool include_stop = false;
  std::int32_t prompt_tokens = 0;
  std::int32_t logprobs = -1;  ///< alternatives shown beside each output token; -1: no logprobs
};

/// News of one choice since they were last taken.
struct ChoiceNews {
  std::string text;
  std::vector<http::TokenLogprob> logprobs;
  std::vector<TokenId> token_ids;
  http::FinishReason finish = http::FinishReason::none;
  bool empty() const { return text.empty() && finish == http::FinishReason::none; }
};

class Choice {
 public:
  Choice(std::shared_ptr<const Tokenizer> tokenizer, const ChoiceOptions& options);

  /// Takes what one step brought. Ignored once finished(). Returns true when the choice has just ended by
  /// itself (a stop string) although the sequence goes on: it has to be cancelled.
  bool take(const SequenceTokens& sequence, const StepTokens& step);

  /// Text, logprobs and ids that may go out now. Logprobs wait with the text of their tokens.
  ChoiceNews take_news();

  bool finished() const { return finish_ != http::FinishReason::none; }
  bool started() const { return output_tokens_ > 0; }
  std::int32_t output_tokens() const { return output_tokens_; }  ///< up to the one that ended it
  double logprob_sum() const { return logprob_sum_; }            ///< of those tokens, when they were asked for
  const std::vector<http::TokenLogprob>& prompt_logprobs() const { return prompt_logprobs_; }
  std::int64_t sent_chars() const { return sent_chars_; }  ///< code points taken so far

 private:
  void append(TokenId id, bool hidden);
  http::TokenLogprob score(const TokenScore& raw, const StepTokens& step, std::int32_t tops) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::int32_t prompt_tokens_;
  std::int32_t logprobs_;
  bool include_stop_;
  Detokenizer detokenizer_;
  StopFilter stop_;

  std::int32_t output_tokens_ = 0;
  double logprob_sum_ = 0;
  http::FinishReason finish_ = http::FinishReason::none;
  bool finish_told_ = false;
  std::string text_;
  std::vector<http::TokenLogprob> scores_;
  std::vector<http::TokenLogprob> prompt_logprobs_;
  std::vector<TokenId> ids_;
  std::int64_t sent_chars_ = 0;
};

/// Code points of valid UTF-8.
std::int64_t count_chars(std::string_view utf8);

}  // namespace troupe
