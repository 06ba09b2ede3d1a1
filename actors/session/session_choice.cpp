#include "actors/session/session_choice.h"

#include <algorithm>
#include <span>

namespace troupe {

SessionChoice::SessionChoice(std::shared_ptr<const TokenTexts> texts, const ChoiceOptions& options)
    : texts_(std::move(texts)),
      prompt_tokens_(options.prompt_tokens),
      logprobs_(options.logprobs),
      min_tokens_(options.min_tokens),
      include_stop_(options.include_stop),
      limits_(options.limits),
      detokenizer_(texts_),
      syntax_(options.syntax),
      stop_(options.stop, options.include_stop),
      logged_bytes_(options.logged_bytes) {
  if (syntax_ != nullptr) parser_.emplace(*syntax_, options.start, limits_.tools);
}

bool SessionChoice::continues_with(const SequenceTokens& sequence, const StepTokens& step) const {
  if (sequence.position != output_tokens()) return false;
  if (sequence.scores == 0) return true;
  const PositionLogprobs* const scores = step.scores.data() + sequence.first_score;
  const std::int32_t first = scores[0].position, last = scores[sequence.scores - 1].position;
  const bool repeats = sequence.tokens == 0 && sequence.finish == Finish::none && last < scored_;
  // The first token of a prompt has no score.
  return !repeats && (first >= prompt_tokens_ || first <= std::max(scored_, 1));
}

bool SessionChoice::take(const SequenceTokens& sequence, const StepTokens& step) {
  if (finished()) return false;
  const bool reports = sequence.tokens > 0 || sequence.scheduled_ns > 0 || sequence.cached_tokens > 0;
  if (reports && !std::exchange(admitted_, true)) cached_tokens_ = sequence.cached_tokens;
  const std::span<const PositionLogprobs> scores(step.scores.data() + sequence.first_score,
                                                 static_cast<std::size_t>(sequence.scores));
  std::size_t next_score = 0;
  for (; next_score < scores.size() && scores[next_score].position < prompt_tokens_; ++next_score) {
    if (scores[next_score].position < scored_) continue;
    scored_ = scores[next_score].position + 1;
    prompt_logprobs_.push_back(named(scores[next_score], step, scores[next_score].tops));
  }

  if (sequence.embedding > 0) {
    const auto first = step.embeddings.begin() + sequence.first_embedding;
    embedding_.assign(first, first + sequence.embedding);
  }
  const std::int32_t before = output_tokens();
  http::FinishReason end = http::FinishReason::none;
  for (std::int32_t i = 0; i < sequence.tokens && end == http::FinishReason::none; ++i) {
    const TokenId id = step.tokens[static_cast<std::size_t>(sequence.first_token + i)];
    const bool last = i + 1 == sequence.tokens;
    // The token that ended the sequence is not part of the text, unless the client wants to see it.
    const bool hidden = last && sequence.finish == Finish::stop && (!include_stop_ || texts_->is_special(id));
    if (next_score < scores.size()) {
      const PositionLogprobs& position = scores[next_score++];
      logprob_sum_ += position.chosen.logprob;
      if (logprobs_ >= 0) {
        logprobs_ready_.push_back(named(position, step, std::min(position.tops, logprobs_)));
        logprobs_ready_.back().in_text = !texts_->is_special(id);
      }
    }
    append(id, hidden);
    if (stop_.stopped()) {
      end = stopped();
    } else if (!(last && sequence.finish != Finish::none)) {
      end = limit_reached();
    }
  }

  count_drafts(sequence, output_tokens() - before);

  if (end != http::FinishReason::none) {
    finish_ = end;
    if (!stop_.stopped()) flush_text();
    return sequence.finish == Finish::none;
  }
  switch (sequence.finish) {
    case Finish::none: return false;
    case Finish::stop: finish_ = http::FinishReason::stop; break;
    case Finish::length: finish_ = http::FinishReason::length; break;
    case Finish::aborted:
    case Finish::poisoned:
    case Finish::too_complex:
    case Finish::error: finish_ = http::FinishReason::abort; break;
  }
  flush_text();
  return false;
}

/// Accepted drafts come first in a step; those behind the token that ended the choice are none of its own.
void SessionChoice::count_drafts(const SequenceTokens& sequence, std::int32_t taken) {
  drafts_.verified += sequence.drafted;
  drafts_.accepted += std::min(sequence.accepted, taken);
  drafts_.predicted += std::min(sequence.predicted_accepted, taken);
  drafts_.mispredicted += sequence.predicted_rejected;
}

void SessionChoice::expire() {
  if (finished()) return;
  finish_ = http::FinishReason::timeout;
  flush_text();
}

/// The limit of its answer that a choice has reached although its sequence is still running; none: it has
/// reached none.
http::FinishReason SessionChoice::limit_reached() const {
  if (limits_.response >= 0 && response_tokens_ >= limits_.response) return http::FinishReason::length;
  if (parser_ && !limits_.parallel_calls && parser_->calls() > 0 && !parser_->in_call() &&
      output_tokens() >= min_tokens_) {
    return http::FinishReason::tool_calls;
  }
  return http::FinishReason::none;
}

/// Why a choice has ended that is complete.
http::FinishReason SessionChoice::stopped() const {
  return parser_ && parser_->calls() > 0 ? http::FinishReason::tool_calls : http::FinishReason::stop;
}

/// The sequence has ended: text that was held back can be sent, unless it completes a stop string.
void SessionChoice::flush_text() {
  AnswerDelta delta;
  if (parser_) {
    if (const std::string text = detokenizer_.flush(); !text.empty()) parser_->take(-1, text, delta);
    parser_->finish(delta);
  } else {
    delta.content = detokenizer_.flush();
  }
  give_out(std::move(delta));
  if (stop_.stopped() || finish_ == http::FinishReason::stop) finish_ = stopped();
  give_text(stop_.flush());
}

void SessionChoice::append(TokenId id, bool hidden) {
  output_.push_back(id);
  if (hidden) return;
  AnswerDelta delta;
  if (!parser_) {
    delta.content = detokenizer_.append(id);
  } else {
    const Tag tag = syntax_->tag_of(id);
    ++(parser_->in_thoughts() ? reasoning_tokens_ : response_tokens_);
    if (parser_->in_thoughts() && tag == Tag::think_end) --reasoning_tokens_;
    parser_->take(id, tag == Tag::none ? detokenizer_.append(id) : detokenizer_.flush(), delta);
  }
  give_out(std::move(delta));
}

/// Stop strings act on the text alone: not on thoughts, tags and calls.
void SessionChoice::give_out(AnswerDelta&& delta) {
  using Kind = ChoiceDelta::Run::Kind;
  reasoning_ += delta.reasoning;
  note(Kind::reasoning, delta.reasoning.size());
  // Text belongs before a call that begins, and behind one that goes on.
  std::string text = stop_.push(delta.content, output_tokens() > min_tokens_);
  if (stop_.stopped()) return give_text(text);
  for (ToolCallPiece& piece : delta.calls) {
    if (piece.index > 0 && !limits_.parallel_calls) break;
    if (!piece.name.empty()) {
      give_text(std::exchange(text, {}));
      give_text(stop_.flush());  // no stop string reaches across a call
    }
    const std::size_t before = call_pieces_.size();
    append_piece(call_pieces_, std::move(piece));
    note(Kind::call, call_pieces_.size() - before);
  }
  give_text(text);
}

void SessionChoice::give_text(std::string_view text) {
  text_ += text;
  note(ChoiceDelta::Run::Kind::text, text.size());
}

void SessionChoice::note(ChoiceDelta::Run::Kind kind, std::size_t size) {
  if (!parser_ || size == 0) return;
  if (order_.empty() || order_.back().kind != kind) order_.push_back({kind, 0});
  order_.back().size += size;
}

ChoiceDelta SessionChoice::take_delta() {
  ChoiceDelta delta;
  if (finished() && !finish_sent_) {
    delta.finish = finish_;
    finish_sent_ = true;
  }
  const bool nothing = text_.empty() && reasoning_.empty() && call_pieces_.empty();
  if (nothing && delta.finish == http::FinishReason::none) return delta;
  delta.text = std::exchange(text_, {});
  delta.reasoning = std::exchange(reasoning_, {});
  delta.calls = std::exchange(call_pieces_, {});
  delta.order = std::exchange(order_, {});
  delta.logprobs = std::exchange(logprobs_ready_, {});
  delta.token_ids.assign(output_.begin() + static_cast<std::ptrdiff_t>(shown_ids_), output_.end());
  shown_ids_ = output_.size();
  if (logged_bytes_ > 0) keep_for_log(delta);
  return delta;
}

/// Up to a piece more than the bytes to log, so that the log can tell that it cuts the text.
void SessionChoice::keep_for_log(const ChoiceDelta& delta) {
  const auto room_in = [this](const std::string& text) {
    return static_cast<std::int64_t>(text.size()) <= logged_bytes_;
  };
  if (room_in(log_.text)) log_.text += delta.text;
  if (room_in(log_.reasoning)) log_.reasoning += delta.reasoning;
  for (const ToolCallPiece& piece : delta.calls) {
    if (log_.calls.empty() || room_in(log_.calls.back().arguments))
      append_piece(log_.calls, ToolCallPiece(piece));
  }
}

http::TokenLogprob SessionChoice::named(const PositionLogprobs& position, const StepTokens& step,
                                        std::int32_t tops) const {
  const auto score = [this](const wire::Logprob& l) {
    return http::TokenScore{texts_->token_bytes(l.token), l.token, l.logprob};
  };
  http::TokenLogprob out;
  out.token = score(position.chosen);
  out.top.reserve(static_cast<std::size_t>(tops));
  for (std::int32_t i = 0; i < tops; ++i) {
    out.top.push_back(score(step.tops[static_cast<std::size_t>(position.first_top + i)]));
  }
  return out;
}

}  // namespace troupe
