#include "actors/session/session.h"

#include <algorithm>
#include <utility>

#include "http/api/embeddings_answer.h"
#include "http/api/openai_error.h"

namespace troupe {
namespace {

double seconds(std::int64_t from_ns, std::int64_t to_ns) {
  return from_ns > 0 && to_ns > from_ns ? static_cast<double>(to_ns - from_ns) * 1e-9 : 0.0;
}

Ending ending_of(http::FinishReason finish, Ending unfinished) {
  switch (finish) {
    case http::FinishReason::none: return unfinished;
    case http::FinishReason::stop: return Ending::stop;
    case http::FinishReason::length: return Ending::length;
    case http::FinishReason::tool_calls:
    case http::FinishReason::function_call: return Ending::tool_calls;
    case http::FinishReason::timeout: return Ending::timeout;
    case http::FinishReason::abort: return Ending::error;
  }
  return unfinished;
}

}  // namespace

Session::Session(std::shared_ptr<const SessionContext> context, Ask ask)
    : context_(std::move(context)),
      ask_(std::move(ask)),
      writer_(make_answer_writer(ask_, *context_->texts)),
      text_bytes_(ask_.body_bytes) {
  for (const http::MediaSource& media : ask_.source.media) {
    text_bytes_ -= static_cast<std::int64_t>(media.file.size());
    for (const std::string& frame : media.frames) text_bytes_ -= static_cast<std::int64_t>(frame.size());
  }
  text_bytes_ = std::max<std::int64_t>(text_bytes_, 0);
  content_.speculates = context_->speculates;
}

std::optional<MeasureMedia> Session::take_media() {
  if (closed_ || ask_.source.media.empty()) return std::nullopt;
  media_held_ = true;
  for (const http::MediaSource& media : ask_.source.media) media_fields_.push_back(media.param);
  return MeasureMedia{ask_.io,     ask_.exchange,    ask_.request_id,
                      ask_.client, ask_.prefix.salt, std::exchange(ask_.source.media, {})};
}

void Session::measured(MeasuredMedia&& media, std::int64_t now_ns, Effects& effects) {
  if (closed_) return;
  if (!media.status.ok()) return fail(media.status, now_ns, effects);
  measured_ = std::move(media.items);
}

Encode Session::take_encode() {
  if (!context_->speculates) ask_.source.prediction.clear();
  Encode job{ask_.request_id,
             ask_.api,
             std::move(ask_.source),
             std::move(ask_.generation.bad_words),
             ask_.answer.return_token_ids,
             ask_.answer.echo,
             kept_tokens(*context_, ask_),
             measured_,
             std::exchange(media_fields_, {})};
  ask_.source = {};
  ask_.source.keep_tokens = job.source.keep_tokens;
  return job;
}

void Session::encoded(Encoded&& encoded, KeySource& keys, std::int64_t now_ns, Effects& effects) {
  if (closed_) return;
  if (const Status status = check_media(encoded); !status.ok()) return fail(status, now_ns, effects);
  truncate_prompts(*context_, ask_, encoded.prompts);
  if (const Status status = check(encoded); !status.ok()) return fail(status, now_ns, effects);
  if (!http::generates(ask_.api)) {
    send(effects, http::Output::Kind::whole, std::move(encoded.answer));
    return close(Ending::stop, now_ns, effects);
  }
  encoded.texts.resize(encoded.prompts.size());
  for (std::size_t i = 0; i < encoded.prompts.size(); ++i) {
    content_.prompts.push_back(
        describe_prompt(ask_, std::move(encoded.prompts[i]), std::move(encoded.texts[i])));
  }
  if (const Status status = bound_answer(*context_, ask_, content_.prompts); !status.ok()) {
    return fail(status, now_ns, effects);
  }
  in_prompt_ = std::move(encoded.media);
  prediction_ = usable_prediction(*context_, std::move(encoded.prediction));
  measured_.clear();
  AnswerOpening opening;
  if (http::is_chat(ask_.api))
    opening = begin_answer(*context_, content_.prompts.front().ids, ask_.generation);
  thinking_ = std::move(opening.thinking);
  for (std::size_t prompt = 0; prompt < content_.prompts.size(); ++prompt) {
    const ChoiceOptions options{ask_.generation.stop,
                                ask_.generation.include_stop,
                                content_.prompts[prompt].tokens,
                                ask_.generation.sampling.logprobs,
                                ask_.generation.sampling.min_tokens,
                                syntax_of_answer(),
                                opening.start,
                                ask_.generation.limits,
                                context_->logged_bytes};
    for (std::int32_t candidate = 0; candidate < candidates(ask_.generation); ++candidate) {
      const auto number = static_cast<std::int32_t>(prompt);
      const std::int32_t index = number * ask_.generation.choices + candidate;
      content_.sequences.push_back({keys(), SessionChoice(context_->texts, options), number, index});
    }
  }
}

bool Session::take_prepare() { return !closed_ && !in_prompt_.empty() && !std::exchange(prepares_, true); }

void Session::prepared(MediaReady&& media, std::int64_t now_ns, Effects& effects) {
  if (closed_) return;
  if (!media.status.ok()) return fail(media.status, now_ns, effects);
  std::vector<SequenceItem> items;
  for (std::size_t i = 0; i < std::min(media.items.size(), in_prompt_.size()); ++i) {
    const PreparedMedia& one = media.items[i];
    if (one.kind == in_prompt_[i].kind && one.grid == in_prompt_[i].grid)
      items.push_back({in_prompt_[i], one.contents, one.place});
  }
  if (items.size() != in_prompt_.size() || items.size() != media.items.size()) {
    return fail(failure(Code::internal, "the images that were decoded are not those that were measured"),
                now_ns, effects);
  }
  in_prompt_.clear();
  content_.prompts.front().media = std::move(items);
}

bool Session::ready() const {
  const auto goes_on = [](const SessionSequence& sequence) { return !sequence.ended; };
  return !closed_ && !submitted_ && in_prompt_.empty() &&
         std::any_of(content_.sequences.begin(), content_.sequences.end(), goes_on);
}

bool Session::needs_grammar() const {
  const bool bounded = thinking_.open && thinking_.budget >= 0;
  return grammar_ == 0 && (ask_.generation.form.kind != http::AnswerForm::Kind::free || bounded);
}

Compile Session::compile_job() const {
  const http::AnswerForm& form = ask_.generation.form;
  return {ask_.request_id, {form.kind, json::to_text(form.value), form.param, form.places},
          thinking_,       ask_.client,
          ask_.io,         ask_.exchange};
}

void Session::compiled(const Compiled& compiled, std::int64_t now_ns, Effects& effects) {
  if (!compiled.status.ok()) return fail(compiled.status, now_ns, effects);
  grammar_ = compiled.grammar;
}

Submit Session::submission(bool alone) {
  Submit submit = make_submit(ask_);
  submit.attempt = attempts_++;
  submit.alone = alone;
  const auto per_prompt = static_cast<std::size_t>(candidates(ask_.generation));
  std::int32_t begun = -1;  // the prompt whose ids are in `submit`, with the sequence `leader`
  RequestKey leader;
  for (std::size_t i = 0; i < content_.sequences.size(); ++i) {
    SessionSequence& sequence = content_.sequences[i];
    if (sequence.ended) continue;
    const SessionPrompt& prompt = content_.prompts[static_cast<std::size_t>(sequence.prompt)];
    const auto candidate = static_cast<std::int32_t>(i % per_prompt);
    SequenceSpec& spec =
        submit.sequences.emplace_back(make_sequence(*context_, ask_, thinking_, prompt.tokens, candidate));
    sequence.handed_over = false;
    sequence.capped = hands_over_ && spec.max_output_tokens > 1;
    if (sequence.capped) spec.max_output_tokens = 1;
    submit.hands_over |= sequence.capped;
    spec.key = sequence.key;
    spec.output = sequence.choice.output();
    spec.scored = sequence.choice.scored();
    if (std::exchange(begun, sequence.prompt) == sequence.prompt) {
      spec.parent = leader;
    } else {
      spec.prompt = prompt.ids;
      spec.media = prompt.media;
      spec.prediction = prediction_;
      leader = spec.key;
    }
  }
  if (grammar_ != 0) hold_to_grammar(ask_.generation, thinking_, grammar_, submit);
  submitted_ = true;
  lives_.begin();
  return submit;
}

void Session::engine_ended(bool counts, bool alone) {
  grammar_ = 0;  // another engine may give the same number to another grammar
  if (std::exchange(submitted_, false) && ready() && counts) lives_.ended(alone);
  if (hands_over_) give_back();
}

EngineRouter::Request Session::wanted() const {
  EngineRouter::Request wanted;
  wanted.prompt = content_.prompts.front().ids;
  wanted.media = content_.prompts.front().media;
  wanted.prefix = &ask_.prefix;
  wanted.together = ask_.together;
  // After a hand-over the engine copies the prompt's blocks and computes next to nothing of it.
  for (const SessionPrompt& prompt : content_.prompts)
    wanted.prompt_tokens += is_handed_over(attempts_) ? 0 : prompt.tokens;
  wanted.begun = first_token_ns_ > 0;
  wanted.hands_over = ask_.api != Api::embeddings && !wanted.begun && !given_back_ && !lives_.suspect() &&
                      ask_.prefix.enabled;
  const auto goes_on = [](const SessionSequence& sequence) { return !sequence.ended; };
  wanted.answers = std::count_if(content_.sequences.begin(), content_.sequences.end(), goes_on);
  wanted.answer_tokens =
      ask_.generation.max_tokens < 0 ? context_->max_model_len : ask_.generation.max_tokens;
  return wanted;
}

void Session::take_back(Effects& effects) {
  submitted_ = false;
  --attempts_;
  if (hands_over_) give_back();
  if (grammar_ != 0) effects.grammars.push_back({engine_, std::exchange(grammar_, 0)});
}

void Session::refused(std::uint32_t attempt, const Status& status, std::int64_t now_ns, Effects& effects) {
  if (!is_submitted(attempt)) return;
  submitted_ = false;
  fail(status, now_ns, effects);
}

/// Checks what only the model can decide, and takes the biases that ban words.
Status Session::check(const Encoded& encoded) {
  if (!encoded.status.ok()) {
    Status status = encoded.status;
    if (status.param == "messages") status.param = conversation_field(ask_);
    return status;
  }
  if (Status status = check_prompts(*context_, ask_, encoded.prompts, encoded.media); !status.ok())
    return status;
  if (!http::generates(ask_.api)) return {};
  auto& all = ask_.generation.logit_bias;
  all.insert(all.end(), encoded.bans.begin(), encoded.bans.end());
  return {};
}

/// Checks where a text process says that the request's images are. Before a prompt is cut: none may be cut.
Status Session::check_media(const Encoded& encoded) const {
  if (!encoded.status.ok()) return {};
  if (encoded.media.empty() && measured_.empty()) return {};
  const std::span<const TokenId> prompt = encoded.prompts.empty()
                                              ? std::span<const TokenId>()
                                              : std::span<const TokenId>(encoded.prompts.front());
  if (!are_placed(encoded.media, measured_, prompt.size()))
    return failure(Code::internal, "the tokenizer gave the images of the prompt wrong places");
  const std::int64_t kept = kept_tokens(*context_, ask_);
  if (static_cast<std::int64_t>(prompt.size()) <= kept) return {};
  return invalid("truncate_prompt_tokens would cut a prompt with images, of " +
                     std::to_string(prompt.size()) + " tokens, to " + std::to_string(kept) +
                     ": allowed are prompts without images, or none that is longer",
                 "truncate_prompt_tokens", "invalid_value");
}

Status Session::failure_of(const SequenceTokens& tokens, const StepTokens& step) const {
  if (tokens.finish == Finish::too_complex) {
    const std::string& param = ask_.generation.form.param;
    return invalid(param + " is too complex: following it takes too long at this answer", param,
                   "grammar_too_complex");
  }
  Status status =
      failure(tokens.finish == Finish::aborted ? Code::unavailable : Code::internal, step.error_of(tokens));
  if (tokens.finish == Finish::poisoned) status.reason = "poison_request";
  return status;
}

bool Session::take(std::size_t place, const SequenceTokens& tokens, const StepTokens& step,
                   std::int64_t now_ns, Effects& effects) {
  if (closed_ || place >= content_.sequences.size()) return true;
  SessionSequence& sequence = content_.sequences[place];
  if (sequence.choice.finished()) return true;  // ended by a stop string; tokens sampled since are discarded
  if (sequence.handed_over) return false;
  if (tokens.attempt + 1 != attempts_ || !sequence.choice.continues_with(tokens, step)) return false;
  const bool failed = tokens.finish == Finish::error || tokens.finish == Finish::aborted ||
                      tokens.finish == Finish::too_complex;
  if (failed && !submitted_) return true;  // another sequence has failed before: all go on elsewhere
  if (failed && hands_over_) return give_up(sequence, effects), true;
  const bool goes_on = sequence.capped && tokens.finish == Finish::length;
  if (goes_on) {
    sequence.handed_over = true;
  } else if (tokens.finish != Finish::none) {
    sequence.ended = true;
  }
  if (failed || tokens.finish == Finish::poisoned) {
    fail(failure_of(tokens, step), now_ns, effects);
    return true;
  }
  if (tokens.scheduled_ns > 0 && scheduled_ns_ == 0) scheduled_ns_ = tokens.scheduled_ns;
  if (tokens.tokens > 0 && first_token_ns_ == 0) {
    first_token_ns_ = now_ns;
    effects.begun.push_back(
        {ask_.request_id, seconds(ask_.arrived_ns, scheduled_ns_), seconds(ask_.arrived_ns, now_ns)});
  }
  if (tokens.tokens > 0) {
    lives_.yielded(tokens.tokens);
  }
  const std::int32_t before = sequence.choice.output_tokens();
  SequenceTokens without_end = tokens;
  if (goes_on) without_end.finish = Finish::none;
  if (sequence.choice.take(without_end, step)) cancel(sequence, effects);
  if (const std::int32_t taken = sequence.choice.output_tokens() - before; taken > 0) {
    if (sequence.last_token_ns > 0) {
      gaps_.add(seconds(sequence.last_token_ns, now_ns), taken);
    } else if (taken > 1) {
      gaps_.add(0, taken - 1);
    }
    sequence.last_token_ns = now_ns;
  }
  changed_ = true;
  hand_over(effects);
  return true;
}

/// Its tokens are not needed any more.
void Session::cancel(SessionSequence& sequence, Effects& effects) const {
  if (std::exchange(sequence.ended, true) || sequence.handed_over || !submitted_) return;
  effects.cancel.push_back({engine_, sequence.key});
}

/// Once its engine has ended all sequences, and another one is to go on with some.
void Session::hand_over(Effects& effects) {
  bool some = false;
  for (const SessionSequence& sequence : content_.sequences) {
    if (!sequence.ended && !sequence.handed_over) return;
    some = some || !sequence.ended;
  }
  if (!some || !submitted_) return;
  submitted_ = hands_over_ = false;
  handed_over_ = attempts_;
  if (grammar_ != 0) effects.grammars.push_back({engine_, std::exchange(grammar_, 0)});
  effects.handed_over.push_back({ask_.exchange, ask_.request_id, engine_});
}

/// What a prefill instance fails at, another engine may not.
void Session::give_up(SessionSequence& failed, Effects& effects) {
  failed.handed_over = true;
  leave_engine(effects);
  effects.handed_over.push_back({ask_.exchange, ask_.request_id, engine_, true});
}

void Session::leave_engine(Effects& effects) {
  for (const SessionSequence& sequence : content_.sequences) {
    const bool runs = submitted_ && !sequence.ended && !sequence.handed_over;
    if (runs) effects.cancel.push_back({engine_, sequence.key});
  }
  submitted_ = false;
  give_back();
  if (grammar_ != 0) effects.grammars.push_back({engine_, std::exchange(grammar_, 0)});
}

void Session::flush(std::int64_t now_ns, const Slice& slice, Effects& effects) {
  if (closed_ || !changed_) return;
  std::string bytes;
  const bool complete = writer_->append(bytes, content_, slice);
  const bool done = complete && content_.finished();
  changed_ = !complete;
  if (!complete && !std::exchange(unfinished_, true)) effects.unfinished.push_back(ask_.exchange);
  if (ask_.answer.stream) {
    if (!bytes.empty()) {
      send(effects, http::Output::Kind::data, std::move(bytes));
      streaming_ = true;
    }
    if (done) send(effects, http::Output::Kind::end, {});
  } else if (!keep_part(std::move(bytes))) {
    const std::string most = std::to_string(context_->bounds.answer_bytes);
    const bool embeds = ask_.api == Api::embeddings;
    fail(invalid("the answer has more than " + most +
                     " bytes, the most that --max-answer-bytes allows: ask for fewer " +
                     (embeds ? "inputs or dimensions, or for base64"
                             : "choices, tokens or logprobs, or for a stream"),
                 embeds ? "input" : "n", "answer_too_large"),
         now_ns, effects);
    return;
  } else if (done) {
    send(effects, http::Output::Kind::whole, {});
    if (ask_.api == Api::embeddings && !context_->embeds)
      effects.outputs.back().headers.emplace_back(http::kEmbeddingsHeader, http::kUntrained);
    if (!parts_.empty()) effects.outputs.back().body = std::move(parts_.front());
    for (std::size_t i = 1; i < parts_.size(); ++i)
      effects.outputs.back().more.push_back(std::move(parts_[i]));
  }
  if (done) close(Ending::stop, now_ns, effects);
}

/// A part of a whole answer. False when the answer has too many bytes.
bool Session::keep_part(std::string&& part) {
  part_bytes_ += part.size();
  if (!part.empty()) parts_.push_back(std::move(part));
  return static_cast<std::int64_t>(part_bytes_) <= context_->bounds.answer_bytes;
}

void Session::resume(std::int64_t now_ns, const Slice& slice, Effects& effects) {
  unfinished_ = false;
  flush(now_ns, slice, effects);
}

void Session::fail(const Status& status, std::int64_t now_ns, Effects& effects) {
  if (closed_) return;
  Status shown = status;
  if (shown.param == "prompt") shown.param = prompt_field(ask_, 0, 1);  // as the client calls it
  if (streaming_) {
    std::string events;
    writer_->append_failure(events, shown);
    send(effects, http::Output::Kind::data, std::move(events));
    send(effects, http::Output::Kind::end, {}, /*failed=*/true);
  } else {
    effects.outputs.push_back(http::error_output(ask_.exchange, shown, 0, ask_.api));
  }
  close(status.code == Code::timeout ? Ending::timeout : Ending::error, now_ns, effects);
}

void Session::expire(std::int64_t now_ns, const Slice& slice, Effects& effects) {
  if (closed_) return;
  if (first_token_ns_ == 0 || ask_.api == Api::embeddings) {
    const std::string missed = ask_.api == Api::embeddings ? "last embedding" : "first token";
    Status late = failure(Code::timeout, "the request's timeout passed before its " + missed);
    late.param = "timeout";
    fail(late, now_ns, effects);
    return;
  }
  for (SessionSequence& sequence : content_.sequences) {
    sequence.choice.expire();
    cancel(sequence, effects);
  }
  changed_ = true;
  flush(now_ns, slice, effects);
}

void Session::withdraw(std::int64_t now_ns, Effects& effects) {
  if (!closed_) close(Ending::cancelled, now_ns, effects);
}

void Session::close(Ending unfinished, std::int64_t now_ns, Effects& effects) {
  closed_ = true;
  if (std::exchange(media_held_, false)) effects.media.push_back(ask_.exchange);
  for (SessionSequence& sequence : content_.sequences) cancel(sequence, effects);
  if (grammar_ != 0) effects.grammars.push_back({engine_, std::exchange(grammar_, 0)});
  const http::Usage used = usage_of(ask_, content_);
  RequestStats stats;
  stats.ok = unfinished == Ending::stop;
  if (http::generates(ask_.api)) {
    for (const SessionSequence& sequence : content_.sequences) {
      ++stats.endings[static_cast<std::size_t>(ending_of(sequence.choice.finish(), unfinished))];
    }
    if (content_.sequences.empty()) ++stats.endings[static_cast<std::size_t>(unfinished)];
  }
  stats.gaps = gaps_;
  stats.prompt_tokens = static_cast<std::int32_t>(used.prompt_tokens);
  stats.cached_tokens = static_cast<std::int32_t>(used.cached_tokens);
  stats.output_tokens = static_cast<std::int32_t>(used.completion_tokens);
  stats.max_tokens = std::max(ask_.generation.max_tokens, 0);
  stats.queue_s = seconds(ask_.arrived_ns, scheduled_ns_);
  stats.prefill_s = seconds(scheduled_ns_, first_token_ns_);
  stats.ttft_s = seconds(ask_.arrived_ns, first_token_ns_);
  stats.decode_s = seconds(first_token_ns_, now_ns);
  stats.e2e_s = seconds(ask_.arrived_ns, now_ns);
  stats.handed_over = handed_over_ > 0;
  stats.given_back = given_back_;
  effects.finished.push_back({ask_.request_id, stats, take_logged()});
}

std::vector<ChoiceText> Session::take_logged() {
  std::vector<ChoiceText> answers;
  if (context_->logged_bytes == 0 || ask_.api == Api::embeddings) return answers;
  for (SessionSequence& sequence : content_.sequences) {
    (void)sequence.choice.take_delta();  // what the client was not sent
    const ChoiceLog& log = sequence.choice.log();
    ChoiceText& answer = answers.emplace_back(ChoiceText{sequence.index, log.text, log.reasoning, {}});
    for (const ToolCallPiece& call : log.calls) {
      answer.calls += (answer.calls.empty() ? "" : "\n") + call.name + "(" + call.arguments + ")";
    }
  }
  return answers;
}

/// Null when the answer is text alone.
const AnswerSyntax* Session::syntax_of_answer() const {
  return http::is_chat(ask_.api) && !context_->syntax.plain() ? &context_->syntax : nullptr;
}

void Session::send(Effects& effects, http::Output::Kind kind, std::string body, bool failed) const {
  http::Output& output = effects.outputs.emplace_back();
  output.exchange_id = ask_.exchange;
  output.kind = kind;
  output.failed = failed;
  output.body = std::move(body);
}

}  // namespace troupe
