#include "actors/session/choice.h"

#include <algorithm>

namespace troupe {

std::int64_t count_chars(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

Choice::Choice(std::shared_ptr<const Tokenizer> tokenizer, const ChoiceOptions& options)
    : tokenizer_(std::move(tokenizer)),
      prompt_tokens_(options.prompt_tokens),
      logprobs_(options.logprobs),
      include_stop_(options.include_stop),
      detokenizer_(tokenizer_),
      stop_(options.stop, options.include_stop) {}

bool Choice::take(const SequenceTokens& sequence, const StepTokens& step) {
  if (finished()) return false;
  const std::span<const TokenScore> scores(step.scores.data() + sequence.first_score,
                                           static_cast<std::size_t>(sequence.scores));
  std::size_t next_score = 0;
  for (; next_score < scores.size() && scores[next_score].position < prompt_tokens_; ++next_score) {
    prompt_logprobs_.push_back(score(scores[next_score], step, scores[next_score].tops));
  }

  bool cut = false;
  for (std::int32_t i = 0; i < sequence.tokens && !cut; ++i) {
    const TokenId id = step.tokens[static_cast<std::size_t>(sequence.first_token + i)];
    const bool last = i + 1 == sequence.tokens;
    // The token that ended the sequence is not part of the text, unless the client wants to see it.
    const bool hidden = last && sequence.finish == Finish::stop && (!include_stop_ || tokenizer_->is_special(id));
    ++output_tokens_;
    if (next_score < scores.size()) {
      const TokenScore& raw = scores[next_score++];
      logprob_sum_ += raw.chosen.logprob;
      if (logprobs_ >= 0 && !hidden) scores_.push_back(score(raw, step, std::min(raw.tops, logprobs_)));
    }
    append(id, hidden);
    cut = stop_.stopped();
  }

  if (cut) {
    finish_ = http::FinishReason::stop;
    return sequence.finish == Finish::none;
  }
  switch (sequence.finish) {
    case Finish::none: return false;
    case Finish::stop: finish_ = http::FinishReason::stop; break;
    case Finish::length: finish_ = http::FinishReason::length; break;
    case Finish::aborted:
    case Finish::error: finish_ = http::FinishReason::abort; break;
  }
  text_ += stop_.push(detokenizer_.flush());
  if (stop_.stopped()) finish_ = http::FinishReason::stop;
  text_ += stop_.flush();
  return false;
}

void Choice::append(TokenId id, bool hidden) {
  ids_.push_back(id);
  if (!hidden) text_ += stop_.push(detokenizer_.append(id));
}

ChoiceNews Choice::take_news() {
  ChoiceNews news;
  if (finished() && !finish_told_) {
    news.finish = finish_;
    finish_told_ = true;
  }
  if (text_.empty() && news.finish == http::FinishReason::none) return news;
  news.text = std::move(text_);
  news.logprobs = std::move(scores_);
  news.token_ids = std::move(ids_);
  text_.clear();
  scores_.clear();
  ids_.clear();
  sent_chars_ += count_chars(news.text);
  return news;
}

http::TokenLogprob Choice::score(const TokenScore& raw, const StepTokens& step, std::int32_t tops) const {
  const auto named = [this](const wire::Logprob& l) {
    return http::TokenScore{std::string(tokenizer_->token_bytes(l.token)), l.token, l.logprob};
  };
  http::TokenLogprob out;
  out.token = named(raw.chosen);
  for (std::int32_t i = 0; i < tops; ++i) out.top.push_back(named(step.tops[static_cast<std::size_t>(raw.first_top + i)]));
  return out;
}

}  // namespace troupe
