#include "actors/session/session.h"

#include <algorithm>

#include "http/openai_error.h"

namespace troupe {
namespace {

double seconds(std::int64_t from_ns, std::int64_t to_ns) {
  return from_ns > 0 && to_ns > from_ns ? static_cast<double>(to_ns - from_ns) * 1e-9 : 0.0;
}

}  // namespace

Session::Session(std::shared_ptr<const SessionContext> context, Ask ask)
    : context_(std::move(context)),
      ask_(std::move(ask)),
      frame_(ask_.api == Api::chat ? http::Dialect::chat : http::Dialect::completion, ask_.answer.id,
             ask_.answer.model, ask_.answer.created_s) {}

std::int32_t Session::candidates() const { return std::max(ask_.generation.choices, ask_.generation.best_of); }

// ---------------------------------------------------------------------------------- the way in

Submit Session::prepare(Encoded&& encoded, std::int64_t now_ns, Effects& effects) {
  if (closed_) return {};
  Status status = std::move(encoded.status);
  if (status.ok()) {
    for (const auto& prompt : encoded.prompts) {
      status = check(prompt);
      if (!status.ok()) break;
    }
  }
  if (status.ok() && ask_.api != Api::tokenize) status = ban_words();
  if (!status.ok()) {
    fail(status, now_ns, effects);
    return {};
  }

  if (ask_.api == Api::tokenize || ask_.api == Api::detokenize) {
    std::string body;
    if (ask_.api == Api::detokenize) {
      body = http::format_detokenized(encoded.text);
    } else {
      const auto& ids = encoded.prompts.front();
      std::vector<std::string> pieces;
      if (ask_.answer.return_token_ids) {
        for (const TokenId id : ids) pieces.emplace_back(context_->tokenizer->token_bytes(id));
      }
      body = http::format_tokenized(ids, context_->max_model_len, pieces);
    }
    send(effects, http::Output::Kind::whole, std::move(body));
    close(true, now_ns, effects);
    return {};
  }

  Submit submit;
  const Generation& generation = ask_.generation;
  for (std::size_t p = 0; p < encoded.prompts.size(); ++p) {
    std::vector<TokenId>& ids = encoded.prompts[p];
    prompts_.push_back(describe(ids, p));
    const std::int32_t tokens = prompts_.back().tokens;
    const std::int32_t room = context_->max_model_len - tokens;
    const std::int32_t wanted = generation.max_tokens < 0 ? room : std::max(generation.max_tokens, 1);
    for (std::int32_t c = 0; c < candidates(); ++c) {
      SequenceSpec spec;
      spec.host = ask_.io;
      spec.prompt_tokens = tokens;
      spec.max_output_tokens = std::min(wanted, room);
      spec.sampling = generation.sampling;
      spec.sampling.choice = static_cast<std::uint32_t>(c);
      if (candidates() > generation.choices) spec.sampling.logprobs = std::max(spec.sampling.logprobs, 0);
      spec.stop_ids = generation.stop_ids;
      if (!generation.ignore_eos) {
        spec.stop_ids.insert(spec.stop_ids.end(), context_->eos_ids.begin(), context_->eos_ids.end());
      }
      spec.logit_bias = generation.logit_bias;
      if (c == 0) {
        spec.prompt = std::move(ids);
      } else {
        spec.sampling.prompt_logprobs = -1;  // its leader runs the prompt
      }
      submit.sequences.push_back(std::move(spec));
    }
  }
  return submit;
}

Status Session::check(const std::vector<TokenId>& prompt) const {
  const char* field = is_chat() ? "messages" : "prompt";
  if (prompt.empty()) {
    if (ask_.api == Api::tokenize) return {};
    return invalid(std::string(field) + " is empty: at least one token is needed", field, "empty_prompt");
  }
  for (const TokenId id : prompt) {
    if (id < 0 || id >= context_->vocab_size) {
      return invalid("token id " + std::to_string(id) + " is outside the vocabulary: allowed are 0 to " +
                         std::to_string(context_->vocab_size - 1), field, "token_out_of_range");
    }
  }
  if (ask_.api == Api::tokenize) return {};
  const auto tokens = static_cast<std::int64_t>(prompt.size());
  const std::int64_t least = std::max<std::int64_t>(1, ask_.generation.sampling.min_tokens);
  if (tokens + least > context_->max_model_len) {
    return invalid("the prompt has " + std::to_string(tokens) + " tokens and at least " + std::to_string(least) +
                       " more are asked for, but this model takes " + std::to_string(context_->max_model_len) +
                       " in all: shorten the prompt", field, "context_length_exceeded");
  }
  return {};
}

/// bad_words become logit biases; a word that is not one token cannot be banned so, and is an error.
Status Session::ban_words() {
  for (const std::string& word : ask_.generation.bad_words) {
    bool found = false;
    for (const std::string& form : {word, " " + word}) {
      const auto ids = context_->tokenizer->encode(form, SpecialTokens::plain);
      if (ids.size() != 1) continue;
      ask_.generation.logit_bias.push_back({ids.front(), -1e10f});
      found = true;
    }
    if (!found) {
      return invalid("bad_words: \"" + word.substr(0, 64) + "\" is not a single token of this model", "bad_words",
                     "invalid_value");
    }
  }
  return {};
}

Session::Prompt Session::describe(const std::vector<TokenId>& ids, std::size_t index) const {
  Prompt prompt;
  prompt.tokens = static_cast<std::int32_t>(ids.size());
  prompt.first = ids.front();
  if (ask_.answer.return_token_ids) prompt.ids = ids;
  if (ask_.answer.echo) {
    if (index < ask_.source.texts.size()) {
      prompt.text = ask_.source.texts[index];
    } else {
      Detokenizer text(context_->tokenizer, /*skip_special_tokens=*/false);
      for (const TokenId id : ids) prompt.text += text.append(id);
      prompt.text += text.flush();
    }
    prompt.chars = count_chars(prompt.text);
  }
  return prompt;
}

void Session::adopt(const Submit& submit) {
  for (std::size_t i = 0; i < submit.sequences.size(); ++i) {
    const SequenceSpec& spec = submit.sequences[i];
    const auto per_prompt = static_cast<std::size_t>(candidates());
    const auto prompt = i / per_prompt;
    const ChoiceOptions options{ask_.generation.stop, ask_.generation.include_stop, spec.prompt_tokens,
                                ask_.generation.sampling.logprobs};
    const auto index = static_cast<std::int32_t>(prompt) * ask_.generation.choices +
                       static_cast<std::int32_t>(i % per_prompt);
    sequences_.push_back({spec.key, Choice(context_->tokenizer, options), static_cast<std::int32_t>(prompt), index});
  }
}

// -------------------------------------------------------------------------------- the way out

void Session::take(std::size_t choice, const SequenceTokens& tokens, const StepTokens& step, std::int64_t now_ns,
                   Effects& effects) {
  if (closed_ || choice >= sequences_.size()) return;
  Sequence& sequence = sequences_[choice];
  if (tokens.finish != Finish::none) sequence.over = true;
  if (sequence.choice.finished())
    return;  // a stop string was its end: what it came to since is nobody's loss
  if (tokens.finish == Finish::error || tokens.finish == Finish::aborted) {
    const Code code = tokens.finish == Finish::error ? Code::internal : Code::unavailable;
    fail(failure(code, tokens.error), now_ns, effects);
    return;
  }
  if (tokens.scheduled_ns > 0 && scheduled_ns_ == 0) scheduled_ns_ = tokens.scheduled_ns;
  if (tokens.tokens > 0 && first_token_ns_ == 0) first_token_ns_ = now_ns;
  if (sequence.choice.take(tokens, step) && !sequence.over) {
    sequence.over = true;
    effects.cancel.push_back(sequence.key);
  }
  changed_ = true;
}

void Session::flush(std::int64_t now_ns, Effects& effects) {
  if (closed_ || !changed_) return;
  changed_ = false;
  if (ask_.answer.stream) {
    stream(now_ns, effects);
  } else if (all_finished()) {
    answer_whole(now_ns, effects);
  }
}

void Session::stream(std::int64_t now_ns, Effects& effects) {
  std::string out;
  const http::Usage used = ask_.answer.continuous_usage ? usage() : http::Usage{};
  for (Sequence& sequence : sequences_) stream_choice(sequence, used, out);
  const bool done = all_finished();
  if (done) {
    if (ask_.answer.include_usage) http::append_usage(out, frame_, usage());
    http::append_done(out);
  }
  if (!out.empty()) {
    send(effects, http::Output::Kind::data, std::move(out));
    streaming_ = true;
  }
  if (done) {
    send(effects, http::Output::Kind::end, {});
    close(true, now_ns, effects);
  }
}

void Session::stream_choice(Sequence& sequence, const http::Usage& used, std::string& out) {
  if (!begun(sequence)) return;
  // Its echo shows what the leader's run of the prompt yields.
  if (ask_.answer.echo && ask_.generation.sampling.prompt_logprobs >= 0 && !begun(leader_of(sequence)))
    return;
  const std::int64_t offset = sequence.choice.sent_chars();
  ChoiceNews news = sequence.choice.take_news();
  if (without_output()) {
    news.text.clear();
    news.logprobs.clear();
    news.token_ids.clear();
  }

  const Prompt& prompt = prompts_[static_cast<std::size_t>(sequence.prompt)];
  http::Piece piece;
  piece.index = sequence.index;
  piece.with_logprobs = wants_logprobs();
  if (ask_.answer.continuous_usage) piece.usage = &used;

  if (!sequence.opened) {
    sequence.opened = true;
    if (is_chat()) http::append_role(out, frame_, sequence.index, prompt.ids);
    if (ask_.answer.echo) {
      const auto logprobs = echoed_logprobs(sequence);
      piece.text = prompt.text;
      piece.logprobs = logprobs;
      http::append_piece(out, frame_, piece);
    }
  }
  if (news.empty()) return;
  piece.text = news.text;
  piece.logprobs = news.logprobs;
  piece.text_offset = prompt.chars + offset;
  piece.finish = without_output() ? http::FinishReason::length : news.finish;
  if (ask_.answer.return_token_ids) piece.token_ids = news.token_ids;
  http::append_piece(out, frame_, piece);
}

void Session::answer_whole(std::int64_t now_ns, Effects& effects) {
  std::vector<http::Choice> choices;
  for (Sequence* sequence : chosen()) choices.push_back(whole_choice(*sequence));
  for (std::size_t i = 0; i < choices.size(); ++i) choices[i].index = static_cast<std::int32_t>(i);
  send(effects, http::Output::Kind::whole, http::format_answer(frame_, choices, usage()));
  close(true, now_ns, effects);
}

/// All sequences; with best_of, of each prompt the `choices` likeliest per token.
std::vector<Session::Sequence*> Session::chosen() {
  std::vector<Sequence*> out;
  const auto per_prompt = static_cast<std::size_t>(candidates());
  const auto mean = [](const Sequence* s) { return s->choice.logprob_sum() / std::max(1, s->choice.output_tokens()); };
  for (std::size_t first = 0; first < sequences_.size(); first += per_prompt) {
    std::vector<Sequence*> group;
    for (std::size_t i = first; i < first + per_prompt; ++i) group.push_back(&sequences_[i]);
    if (candidates() > ask_.generation.choices) {
      std::stable_sort(group.begin(), group.end(), [&](auto* a, auto* b) { return mean(a) > mean(b); });
      group.resize(static_cast<std::size_t>(ask_.generation.choices));
    }
    out.insert(out.end(), group.begin(), group.end());
  }
  return out;
}

http::Choice Session::whole_choice(Sequence& sequence) {
  const Prompt& prompt = prompts_[static_cast<std::size_t>(sequence.prompt)];
  ChoiceNews news = sequence.choice.take_news();
  http::Choice choice;
  choice.with_logprobs = wants_logprobs();
  if (ask_.answer.echo) {
    choice.text = prompt.text;
    if (choice.with_logprobs) choice.logprobs = echoed_logprobs(sequence);
  }
  choice.finish = news.finish;
  if (without_output()) {
    choice.finish = http::FinishReason::length;
  } else {
    choice.text += news.text;
    std::move(news.logprobs.begin(), news.logprobs.end(), std::back_inserter(choice.logprobs));
    if (ask_.answer.return_token_ids) choice.token_ids = std::move(news.token_ids);
  }
  choice.prompt_token_ids = prompt.ids;
  if (!ask_.answer.echo && ask_.generation.sampling.prompt_logprobs >= 0) {
    choice.with_prompt_logprobs = true;
    choice.prompt_logprobs = echoed_logprobs(sequence);
  }
  return choice;
}

/// A forked choice did not run the prompt: the first one of its prompt did.
const Session::Sequence& Session::leader_of(const Sequence& sequence) const {
  return sequences_[static_cast<std::size_t>(sequence.prompt * candidates())];
}

/// Logprobs of the prompt's tokens. Nothing precedes the first one, so it has none.
std::vector<http::TokenLogprob> Session::echoed_logprobs(const Sequence& sequence) const {
  if (ask_.generation.sampling.prompt_logprobs < 0) return {};
  const TokenId first = prompts_[static_cast<std::size_t>(sequence.prompt)].first;
  std::vector<http::TokenLogprob> out;
  http::TokenLogprob unknown;
  unknown.token = {std::string(context_->tokenizer->token_bytes(first)), first, 0.0f};
  unknown.known = false;
  out.push_back(std::move(unknown));
  const auto& scores = leader_of(sequence).choice.prompt_logprobs();
  out.insert(out.end(), scores.begin(), scores.end());
  return out;
}

// ------------------------------------------------------------------------------------ the end

void Session::fail(const Status& status, std::int64_t now_ns, Effects& effects) {
  if (closed_) return;
  if (streaming_) {
    std::string frame;
    http::append_error_event(frame, status);
    http::append_done(frame);
    send(effects, http::Output::Kind::data, std::move(frame));
    send(effects, http::Output::Kind::end, {});
    effects.outputs.back().failed = true;
  } else {
    effects.outputs.push_back(http::error_output(ask_.exchange, status));
  }
  close(false, now_ns, effects);
}

void Session::withdraw(std::int64_t now_ns, Effects& effects) {
  if (!closed_) close(false, now_ns, effects);
}

void Session::close(bool ok, std::int64_t now_ns, Effects& effects) {
  closed_ = true;
  for (Sequence& sequence : sequences_) {
    if (!sequence.over) effects.cancel.push_back(sequence.key);
    sequence.over = true;
  }
  RequestStats stats;
  stats.ok = ok;
  const http::Usage used = usage();
  stats.prompt_tokens = static_cast<std::int32_t>(used.prompt_tokens);
  stats.output_tokens = static_cast<std::int32_t>(used.completion_tokens);
  stats.max_tokens = std::max(ask_.generation.max_tokens, 0);
  stats.queue_s = seconds(ask_.arrived_ns, scheduled_ns_);
  stats.prefill_s = seconds(scheduled_ns_, first_token_ns_);
  stats.ttft_s = seconds(ask_.arrived_ns, first_token_ns_);
  stats.decode_s = seconds(first_token_ns_, now_ns);
  stats.e2e_s = seconds(ask_.arrived_ns, now_ns);
  effects.finished.push_back({ask_.request_id, stats});
}

bool Session::begun(const Sequence& sequence) {
  return sequence.choice.started() || sequence.choice.finished();
}

bool Session::all_finished() const {
  return std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.choice.finished(); });
}

http::Usage Session::usage() const {
  http::Usage used;
  for (const Prompt& prompt : prompts_) used.prompt_tokens += prompt.tokens;
  if (!without_output()) {
    for (const Sequence& sequence : sequences_) used.completion_tokens += sequence.choice.output_tokens();
  }
  return used;
}

http::Output& Session::send(Effects& effects, http::Output::Kind kind, std::string body) const {
  http::Output& output = effects.outputs.emplace_back();
  output.exchange_id = ask_.exchange;
  output.kind = kind;
  output.body = std::move(body);
  return output;
}

}  // namespace troupe
