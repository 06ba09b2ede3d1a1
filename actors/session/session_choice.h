#pragma once
// One choice of an answer: turns the tokens of one sequence into thoughts, text and tool calls that may be
// sent, and keeps what the whole answer needs of it (logprobs, ids, counts, why it ended).
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/messages.h"
#include "actors/session/stop_filter.h"
#include "http/api/openai_response.h"
#include "text/detokenizer.h"
#include "text/parsers/answer_parser.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

/// What all choices of one prompt have in common.
struct ChoiceOptions {
  std::vector<std::string> stop;
  bool include_stop = false;
  std::int32_t prompt_tokens = 0;
  std::int32_t logprobs = -1;   ///< alternatives shown beside each output token; -1: no logprobs
  std::int32_t min_tokens = 0;  ///< a stop string counts only if a later token than these completes it
  const AnswerSyntax* syntax = nullptr;  ///< outlives the choice; null: the answer is text alone
  AnswerStart start = AnswerStart::answer;
  AnswerLimits limits;
  std::int64_t logged_bytes = 0;  ///< of each text that log() keeps; 0: none
};

/// Draft tokens of a choice.
struct DraftedTokens {
  std::int64_t verified = 0;
  std::int64_t accepted = 0;      ///< of them, output tokens of the choice
  std::int64_t predicted = 0;     ///< of `accepted`, those of the request's prediction
  std::int64_t mispredicted = 0;  ///< tokens of the prediction that were verified and not accepted
};

/// The beginning of what became ready to be sent, for the log.
struct ChoiceLog {
  std::string text;
  std::string reasoning;
  std::vector<ToolCallPiece> calls;
};

/// What became ready to be sent since the last take_delta().
struct ChoiceDelta {
  /// Bytes of `text` or `reasoning`, or pieces of `calls`, that follow one another.
  struct Run {
    enum class Kind : std::uint8_t { text, reasoning, call };
    Kind kind = Kind::text;
    std::size_t size = 0;
  };

  std::string text;
  std::string reasoning;
  std::vector<ToolCallPiece> calls;
  std::vector<Run> order;  ///< of all three, as the model wrote them; empty: there is text alone
  std::vector<http::TokenLogprob> logprobs;
  std::vector<TokenId> token_ids;
  http::FinishReason finish = http::FinishReason::none;
  bool empty() const {
    return text.empty() && reasoning.empty() && calls.empty() && finish == http::FinishReason::none;
  }
};

class SessionChoice {
 public:
  SessionChoice(std::shared_ptr<const TokenTexts> texts, const ChoiceOptions& options);

  /// Adds the tokens of one step; does nothing once finished(). Returns true when a stop string or a limit of
  /// the answer has just ended the choice although the sequence goes on: the sequence has to be cancelled.
  bool take(const SequenceTokens& sequence, const StepTokens& step);

  /// True when the entry goes on exactly where what was taken ends: its tokens, and the scores of its prompt,
  /// of which it may repeat some. take() is for such entries only.
  bool continues_with(const SequenceTokens& sequence, const StepTokens& step) const;

  /// Ends the choice with what it has, because its request's time is over; does nothing once finished().
  void expire();

  /// What may be sent now. Logprobs and ids wait with the text of their tokens. Both have an entry for each
  /// token up to the one that ended the choice, that one too, even if its text is left out.
  ChoiceDelta take_delta();

  bool finished() const { return finish_ != http::FinishReason::none; }
  http::FinishReason finish() const { return finish_; }
  bool started() const { return !output_.empty() || finished(); }  ///< it has a token, or ended without one
  std::int32_t cached_tokens() const { return cached_tokens_; }  ///< of its prompt, found in the prefix cache
  std::int32_t output_tokens() const {
    return static_cast<std::int32_t>(output_.size());
  }                                                               ///< up to the one that ended it
  const std::vector<TokenId>& output() const { return output_; }  ///< these tokens
  std::int32_t scored() const { return scored_; }  ///< the logprobs of prompt positions below this were taken
  std::int32_t reasoning_tokens() const {
    return reasoning_tokens_;
  }  ///< of these, before the tag that ends thoughts
  const std::string& stop_met() const {
    return stop_.met();
  }  ///< the stop string that ended it; empty: none did
  /// Mean log-probability of the output tokens; 0 when logprobs were not asked for.
  double mean_logprob() const { return logprob_sum_ / std::max(1, output_tokens()); }
  /// Of the prompt's tokens but the first; all of them once it has started. Once.
  std::vector<http::TokenLogprob> take_prompt_logprobs() { return std::exchange(prompt_logprobs_, {}); }
  /// Of its prompt, with wire::Sampling::embeds; empty before it has come.
  const std::vector<float>& embedding() const { return embedding_; }
  const DraftedTokens& drafts() const { return drafts_; }
  const ChoiceLog& log() const { return log_; }  ///< what take_delta() has returned

 private:
  void append(TokenId id, bool hidden);
  void count_drafts(const SequenceTokens& sequence, std::int32_t taken);
  void give_out(AnswerDelta&& delta);
  void give_text(std::string_view text);
  void note(ChoiceDelta::Run::Kind kind, std::size_t size);
  void flush_text();
  void keep_for_log(const ChoiceDelta& delta);
  http::FinishReason limit_reached() const;
  http::FinishReason stopped() const;
  http::TokenLogprob named(const PositionLogprobs& position, const StepTokens& step, std::int32_t tops) const;

  std::shared_ptr<const TokenTexts> texts_;
  std::int32_t prompt_tokens_;
  std::int32_t logprobs_;
  std::int32_t min_tokens_;
  bool include_stop_;
  AnswerLimits limits_;
  Detokenizer detokenizer_;
  std::optional<AnswerParser> parser_;
  const AnswerSyntax* syntax_;
  StopFilter stop_;

  std::int32_t cached_tokens_ = 0;
  bool admitted_ = false;  // cached_tokens_ was reported, once for all engines that run the sequence
  std::int32_t scored_ = 0;
  std::vector<TokenId> output_;
  std::size_t shown_ids_ = 0;  // of output_, were taken by take_delta()
  std::int32_t reasoning_tokens_ = 0;
  std::int32_t response_tokens_ = 0;  // behind the thoughts
  double logprob_sum_ = 0;
  DraftedTokens drafts_;
  std::vector<float> embedding_;
  http::FinishReason finish_ = http::FinishReason::none;
  bool finish_sent_ = false;
  std::string text_;  // not taken yet, as are the next four
  std::string reasoning_;
  std::vector<ToolCallPiece> call_pieces_;
  std::vector<ChoiceDelta::Run> order_;
  std::vector<http::TokenLogprob> logprobs_ready_;
  std::vector<http::TokenLogprob> prompt_logprobs_;
  std::int64_t logged_bytes_;
  ChoiceLog log_;
};

}  // namespace troupe
