#include "actors/session/session_choice.h"

#include <algorithm>
#include <span>

#include "base/utf8.h"

namespace troupe {

SessionChoice::SessionChoice(std::shared_ptr<const Tokenizer> tokenizer, const ChoiceOptions& options)
    : tokenizer_(std::move(tokenizer)),
      prompt_tokens_(options.prompt_tokens),
      logprobs_(options.logprobs),
      include_stop_(options.include_stop),
      detokenizer_(tokenizer_),
      stop_(options.stop, options.include_stop) {}

bool SessionChoice::take(const SequenceTokens& sequence, const StepTokens& step) {
  if (finished()) return false;
  cached_tokens_ += sequence.cached_tokens;
  const std::span<const PositionLogprobs> scores(step.scores.data() + sequence.first_score,
                                                 static_cast<std::size_t>(sequence.scores));
  std::size_t next_score = 0;
  for (; next_score < scores.size() && scores[next_score].position < prompt_tokens_; ++next_score) {
    prompt_logprobs_.push_back(named(scores[next_score], step, scores[next_score].tops));
  }

  bool stopped = false;
  for (std::int32_t i = 0; i < sequence.tokens && !stopped; ++i) {
    const TokenId id = step.tokens[static_cast<std::size_t>(sequence.first_token + i)];
    const bool last = i + 1 == sequence.tokens;
    // The token that ended the sequence is not part of the text, unless the client wants to see it.
    const bool hidden = last && sequence.finish == Finish::stop && (!include_stop_ || tokenizer_->is_special(id));
    ++output_tokens_;
    if (next_score < scores.size()) {
      const PositionLogprobs& position = scores[next_score++];
      logprob_sum_ += position.chosen.logprob;
      if (logprobs_ >= 0 && !hidden) {
        logprobs_ready_.push_back(named(position, step, std::min(position.tops, logprobs_)));
      }
    }
    append(id, hidden);
    stopped = stop_.stopped();
  }

  if (stopped) {
    finish_ = http::FinishReason::stop;
    return sequence.finish == Finish::none;
  }
  switch (sequence.finish) {
    case Finish::none: return false;
    case Finish::stop: finish_ = http::FinishReason::stop; break;
    case Finish::length: finish_ = http::FinishReason::length; break;
    case Finish::aborted:
    case Finish::poisoned:
    case Finish::error: finish_ = http::FinishReason::abort; break;
  }
  flush_text();
  return false;
}

void SessionChoice::expire() {
  if (finished()) return;
  finish_ = http::FinishReason::timeout;
  flush_text();
}

/// The sequence has ended: text that was held back can be sent, unless it completes a stop string.
void SessionChoice::flush_text() {
  text_ += stop_.push(detokenizer_.flush());
  if (stop_.stopped()) finish_ = http::FinishReason::stop;
  text_ += stop_.flush();
}

void SessionChoice::append(TokenId id, bool hidden) {
  ids_.push_back(id);
  if (!hidden) text_ += stop_.push(detokenizer_.append(id));
}

ChoiceNews SessionChoice::take_news() {
  ChoiceNews news;
  if (finished() && !finish_sent_) {
    news.finish = finish_;
    finish_sent_ = true;
  }
  if (text_.empty() && news.finish == http::FinishReason::none) return news;
  news.text = std::exchange(text_, {});
  news.logprobs = std::exchange(logprobs_ready_, {});
  news.token_ids = std::exchange(ids_, {});
  sent_chars_ += static_cast<std::int64_t>(utf8::length(news.text));
  return news;
}

http::TokenLogprob SessionChoice::named(const PositionLogprobs& position, const StepTokens& step,
                                        std::int32_t tops) const {
  const auto score = [this](const wire::Logprob& l) {
    return http::TokenScore{std::string(tokenizer_->token_bytes(l.token)), l.token, l.logprob};
  };
  http::TokenLogprob out;
  out.token = score(position.chosen);
  for (std::int32_t i = 0; i < tops; ++i) {
    out.top.push_back(score(step.tops[static_cast<std::size_t>(position.first_top + i)]));
  }
  return out;
}

}  // namespace troupe
