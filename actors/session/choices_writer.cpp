#include "actors/session/choices_writer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "actors/session/answer_ids.h"
#include "http/api/openai_error.h"
#include "http/api/openai_logprobs.h"

namespace troupe {
namespace {

/// For the client: a call's first part has its id.
std::vector<http::ToolCall> named_calls(std::vector<ToolCallPiece>&& pieces, const RequestKey& key) {
  std::vector<http::ToolCall> calls;
  for (ToolCallPiece& piece : pieces) {
    std::string id = piece.name.empty() ? std::string() : part_id("chatcmpl-tool-", key, piece.index);
    calls.push_back({piece.index, std::move(id), std::move(piece.name), std::move(piece.arguments)});
  }
  return calls;
}

}  // namespace

ChoicesWriter::ChoicesWriter(const Ask& ask, const TokenTexts& texts)
    : ask_(ask), texts_(texts), frame_(ask.api, ask.answer.id, ask.answer.model, ask.answer.created_s) {}

bool ChoicesWriter::append(std::string& out, AnswerContent& content, const Slice& slice) {
  if (ask_.answer.stream) return append_events(out, content, slice);
  return !content.finished() || append_whole(out, content, slice);
}

void ChoicesWriter::append_failure(std::string& out, const Status& status) {
  http::append_error_event(out, status);
  http::append_done(out);
}

bool ChoicesWriter::append_events(std::string& out, AnswerContent& content, const Slice& slice) {
  const http::Usage used = ask_.answer.continuous_usage ? usage_of(ask_, content) : http::Usage{};
  bool complete = true;
  for (SessionSequence& sequence : content.sequences) {
    complete &= append_delta(out, content, sequence, ask_.answer.continuous_usage ? &used : nullptr, slice);
  }
  if (!complete || !content.finished()) return complete;
  if (ask_.answer.include_usage) http::append_usage(out, frame_, usage_of(ask_, content));
  http::append_done(out);
  return true;
}

/// False when there is more to tell of the sequence than the slice leaves time for: its echo.
bool ChoicesWriter::append_delta(std::string& out, AnswerContent& content, SessionSequence& sequence,
                                 const http::Usage* used, const Slice& slice) {
  if (!sequence.choice.started()) return true;
  // An echo shows the logprobs of the prompt, which come with the leader's first token.
  if (ask_.answer.echo && wants_prompt_logprobs() && !leader_of(content, sequence).choice.started())
    return true;
  const std::int32_t tokens = sequence.choice.output_tokens();
  if (!sequence.choice.finished() && tokens - sequence.sent_tokens < ask_.answer.tokens_per_event)
    return true;
  if (ask_.answer.echo && !sequence.opened) {
    if (wants_prompt_logprobs() && !prompt_scores(content, sequence).make_echo(slice)) return false;
    if (slice.over()) return false;
  }
  sequence.sent_tokens = tokens;
  ChoiceDelta delta = sequence.choice.take_delta();
  if (hides_output(ask_)) {
    delta.text.clear();
    delta.reasoning.clear();
    delta.calls.clear();
    delta.logprobs.clear();
    delta.token_ids.clear();
  }

  const SessionPrompt& prompt = content.prompts[static_cast<std::size_t>(sequence.prompt)];
  http::Piece piece;
  piece.index = sequence.index;
  piece.with_logprobs = wants_logprobs();
  piece.usage = used;

  if (!std::exchange(sequence.opened, true)) {
    if (ask_.api == Api::chat) {
      http::append_role(out, frame_, sequence.index, prompt.shown_ids());
    } else {
      piece.prompt_token_ids = prompt.shown_ids();
    }
    if (ask_.answer.echo) {
      piece.text = prompt.text;
      if (wants_prompt_logprobs()) piece.made_logprobs = prompt_scores(content, sequence).echo();
      http::append_piece(out, frame_, piece);
      piece.made_logprobs = {};
      piece.prompt_token_ids = {};
    }
  }
  if (delta.empty() && piece.prompt_token_ids.empty()) return true;
  const std::vector<http::ToolCall> calls = named_calls(std::move(delta.calls), sequence.key);
  piece.text = delta.text;
  piece.reasoning = delta.reasoning;
  piece.calls = calls;
  piece.legacy_calls = ask_.answer.function_call;
  piece.logprobs = delta.logprobs;
  piece.text_offset = prompt.chars + sequence.scored_chars;
  for (const http::TokenLogprob& score : delta.logprobs) sequence.scored_chars += http::text_chars(score);
  piece.finish = hides_output(ask_) ? http::FinishReason::length : finish_of(delta);
  if (ask_.answer.return_token_ids) piece.token_ids = delta.token_ids;
  http::append_piece(out, frame_, piece);
  return true;
}

bool ChoicesWriter::append_whole(std::string& out, AnswerContent& content, const Slice& slice) {
  if (!std::exchange(begun_, true)) {
    chosen_ = chosen(content);
    chunks_.text(frame_.answer_prefix());
  }
  while (chunks_.write(out, slice)) {
    if (added_ > chosen_.size()) return true;
    if (added_ < chosen_.size()) {
      add_choice(content, *chosen_[added_]);
    } else {
      std::string end;
      http::append_answer_end(end, usage_of(ask_, content));
      chunks_.text(std::move(end));
    }
    ++added_;
  }
  return false;
}

/// Puts the parts of a choice into the chunks, which are empty.
void ChoicesWriter::add_choice(AnswerContent& content, SessionSequence& sequence) {
  using List = http::ScoreList;
  choice_ = whole_choice(content, sequence);
  choice_.index = static_cast<std::int32_t>(added_);
  std::string text = added_ > 0 ? "," : "";
  http::append_choice_begin(text, frame_.api(), choice_);
  const auto add_list = [&](const char* before, List list, PromptScores* prompt) {
    text += before;
    chunks_.text(std::exchange(text, {}));
    if (prompt != nullptr) chunks_.prompt(*prompt, list);
    chunks_.scores(choice_.logprobs, list, prompt);
  };
  PromptScores* echoed = ask_.answer.echo && wants_prompt_logprobs() && choice_.with_logprobs
                             ? &prompt_scores(content, sequence)
                             : nullptr;
  if (!choice_.with_logprobs) {
    text += "null";
  } else if (ask_.api == Api::chat) {
    add_list(R"({"content":[)", List::chat, nullptr);
    text += R"(],"refusal":null})";
  } else {
    add_list(R"({"tokens":[)", List::tokens, echoed);
    add_list(R"(],"token_logprobs":[)", List::token_logprobs, echoed);
    add_list(R"(],"top_logprobs":[)", List::top_logprobs, echoed);
    add_list(R"(],"text_offset":[)", List::text_offset, echoed);
    text += "]}";
  }
  if (!ask_.answer.echo && wants_prompt_logprobs()) {
    text += R"(,"prompt_logprobs":[)";
    chunks_.text(std::exchange(text, {}));
    chunks_.prompt(prompt_scores(content, sequence), List::prompt);
    text += "]";
  }
  http::append_choice_end(text, choice_);
  chunks_.text(std::move(text));
}

/// All sequences; with best_of, the n likeliest per token of each prompt.
std::vector<SessionSequence*> ChoicesWriter::chosen(AnswerContent& content) const {
  std::vector<SessionSequence*> out;
  const auto per_prompt = static_cast<std::size_t>(candidates(ask_.generation));
  const auto wanted = static_cast<std::size_t>(ask_.generation.choices);
  for (std::size_t first = 0; first < content.sequences.size(); first += per_prompt) {
    std::vector<SessionSequence*> group;
    for (std::size_t i = first; i < first + per_prompt; ++i) group.push_back(&content.sequences[i]);
    if (per_prompt > wanted) {
      std::stable_sort(group.begin(), group.end(),
                       [](auto* a, auto* b) { return a->choice.mean_logprob() > b->choice.mean_logprob(); });
      group.resize(wanted);
    }
    out.insert(out.end(), group.begin(), group.end());
  }
  return out;
}

/// Without the scores of its prompt.
http::AnswerChoice ChoicesWriter::whole_choice(const AnswerContent& content, SessionSequence& sequence) {
  const SessionPrompt& prompt = content.prompts[static_cast<std::size_t>(sequence.prompt)];
  ChoiceDelta delta = sequence.choice.take_delta();
  http::AnswerChoice choice;
  choice.with_logprobs = wants_logprobs();
  if (ask_.answer.echo) choice.text = prompt.text;
  choice.finish = finish_of(delta);
  if (hides_output(ask_)) {
    choice.finish = http::FinishReason::length;
  } else {
    choice.text += delta.text;
    choice.reasoning = std::move(delta.reasoning);
    choice.calls = named_calls(std::move(delta.calls), sequence.key);
    choice.legacy_calls = ask_.answer.function_call;
    choice.logprobs = std::move(delta.logprobs);
    if (ask_.answer.return_token_ids) choice.token_ids = std::move(delta.token_ids);
  }
  choice.prompt_token_ids.assign(prompt.shown_ids().begin(), prompt.shown_ids().end());
  return choice;
}

http::FinishReason ChoicesWriter::finish_of(const ChoiceDelta& delta) const {
  const bool legacy = ask_.answer.function_call && delta.finish == http::FinishReason::tool_calls;
  return legacy ? http::FinishReason::function_call : delta.finish;
}

/// The first sequence of the same prompt. It alone runs the prompt; the others are forked from it.
SessionSequence& ChoicesWriter::leader_of(AnswerContent& content, const SessionSequence& sequence) const {
  return content.sequences[static_cast<std::size_t>(sequence.prompt * candidates(ask_.generation))];
}

/// The scores of the sequence's prompt, which the leader brings with its first token. Nothing precedes the
/// first token, so it has none.
PromptScores& ChoicesWriter::prompt_scores(AnswerContent& content, const SessionSequence& sequence) {
  const auto prompt = static_cast<std::size_t>(sequence.prompt);
  prompt_scores_.resize(content.prompts.size());
  if (!prompt_scores_[prompt]) {
    const TokenId first = content.prompts[prompt].ids.front();
    std::vector<http::TokenLogprob> scores = leader_of(content, sequence).choice.take_prompt_logprobs();
    http::TokenLogprob unknown;
    unknown.token = {texts_.token_bytes(first), first, 0.0f};
    unknown.known = false;
    scores.insert(scores.begin(), std::move(unknown));
    prompt_scores_[prompt] = std::make_unique<PromptScores>(std::move(scores));
  }
  return *prompt_scores_[prompt];
}

}  // namespace troupe
