#include "actors/session/choices_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "actors/session/answer_ids.h"
#include "http/openai_error.h"

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

ChoicesWriter::ChoicesWriter(const Ask& ask, const Tokenizer& tokenizer)
    : ask_(ask),
      tokenizer_(tokenizer),
      frame_(ask.api == Api::chat ? http::Dialect::chat : http::Dialect::completion, ask.answer.id,
             ask.answer.model, ask.answer.created_s) {}

void ChoicesWriter::append(std::string& out, AnswerContent& content) {
  if (ask_.answer.stream) {
    append_events(out, content);
  } else if (content.finished()) {
    out += whole(content);
  }
}

void ChoicesWriter::append_failure(std::string& out, const Status& status) {
  http::append_error_event(out, status);
  http::append_done(out);
}

void ChoicesWriter::append_events(std::string& out, AnswerContent& content) const {
  const http::Usage used = ask_.answer.continuous_usage ? usage_of(ask_, content) : http::Usage{};
  for (SessionSequence& sequence : content.sequences) {
    append_news(out, content, sequence, ask_.answer.continuous_usage ? &used : nullptr);
  }
  if (!content.finished()) return;
  if (ask_.answer.include_usage) http::append_usage(out, frame_, usage_of(ask_, content));
  http::append_done(out);
}

void ChoicesWriter::append_news(std::string& out, const AnswerContent& content, SessionSequence& sequence,
                                const http::Usage* used) const {
  if (!sequence.choice.started()) return;
  // An echo shows the logprobs of the prompt, which come with the leader's first token.
  if (ask_.answer.echo && wants_prompt_logprobs() && !leader_of(content, sequence).choice.started()) return;
  const std::int32_t tokens = sequence.choice.output_tokens();
  if (!sequence.choice.finished() && tokens - sequence.sent_tokens < ask_.answer.tokens_per_event) return;
  sequence.sent_tokens = tokens;
  const std::int64_t sent_before = sequence.choice.sent_chars();
  ChoiceNews news = sequence.choice.take_news();
  if (hides_output(ask_)) {
    news.text.clear();
    news.reasoning.clear();
    news.calls.clear();
    news.logprobs.clear();
    news.token_ids.clear();
  }

  const SessionPrompt& prompt = content.prompts[static_cast<std::size_t>(sequence.prompt)];
  http::Piece piece;
  piece.index = sequence.index;
  piece.with_logprobs = wants_logprobs();
  piece.usage = used;

  if (!std::exchange(sequence.opened, true)) {
    if (ask_.api == Api::chat) http::append_role(out, frame_, sequence.index, prompt.ids);
    if (ask_.answer.echo) {
      const auto logprobs = prompt_logprobs(content, sequence);
      piece.text = prompt.text;
      piece.logprobs = logprobs;
      http::append_piece(out, frame_, piece);
    }
  }
  if (news.empty()) return;
  const std::vector<http::ToolCall> calls = named_calls(std::move(news.calls), sequence.key);
  piece.text = news.text;
  piece.reasoning = news.reasoning;
  piece.calls = calls;
  piece.legacy_calls = ask_.answer.function_call;
  piece.logprobs = news.logprobs;
  piece.text_offset = prompt.chars + sent_before;
  piece.finish = hides_output(ask_) ? http::FinishReason::length : finish_of(news);
  if (ask_.answer.return_token_ids) piece.token_ids = news.token_ids;
  http::append_piece(out, frame_, piece);
}

std::string ChoicesWriter::whole(AnswerContent& content) const {
  std::vector<http::AnswerChoice> choices;
  for (SessionSequence* sequence : chosen(content)) choices.push_back(whole_choice(content, *sequence));
  for (std::size_t i = 0; i < choices.size(); ++i) choices[i].index = static_cast<std::int32_t>(i);
  return http::format_answer(frame_, choices, usage_of(ask_, content));
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

http::AnswerChoice ChoicesWriter::whole_choice(const AnswerContent& content,
                                               SessionSequence& sequence) const {
  const SessionPrompt& prompt = content.prompts[static_cast<std::size_t>(sequence.prompt)];
  ChoiceNews news = sequence.choice.take_news();
  http::AnswerChoice choice;
  choice.with_logprobs = wants_logprobs();
  if (ask_.answer.echo) {
    choice.text = prompt.text;
    if (choice.with_logprobs) choice.logprobs = prompt_logprobs(content, sequence);
  }
  choice.finish = finish_of(news);
  if (hides_output(ask_)) {
    choice.finish = http::FinishReason::length;
  } else {
    choice.text += news.text;
    choice.reasoning = std::move(news.reasoning);
    choice.calls = named_calls(std::move(news.calls), sequence.key);
    choice.legacy_calls = ask_.answer.function_call;
    std::move(news.logprobs.begin(), news.logprobs.end(), std::back_inserter(choice.logprobs));
    if (ask_.answer.return_token_ids) choice.token_ids = std::move(news.token_ids);
  }
  choice.prompt_token_ids = prompt.ids;
  if (!ask_.answer.echo && wants_prompt_logprobs()) {
    choice.with_prompt_logprobs = true;
    choice.prompt_logprobs = prompt_logprobs(content, sequence);
  }
  return choice;
}

http::FinishReason ChoicesWriter::finish_of(const ChoiceNews& news) const {
  const bool legacy = ask_.answer.function_call && news.finish == http::FinishReason::tool_calls;
  return legacy ? http::FinishReason::function_call : news.finish;
}

/// The first sequence of the same prompt. It alone runs the prompt; the others are forked from it.
const SessionSequence& ChoicesWriter::leader_of(const AnswerContent& content,
                                                const SessionSequence& sequence) const {
  return content.sequences[static_cast<std::size_t>(sequence.prompt * candidates(ask_.generation))];
}

/// Logprobs of the prompt's tokens. Nothing precedes the first token, so it has none.
std::vector<http::TokenLogprob> ChoicesWriter::prompt_logprobs(const AnswerContent& content,
                                                               const SessionSequence& sequence) const {
  if (!wants_prompt_logprobs()) return {};
  const TokenId first = content.prompts[static_cast<std::size_t>(sequence.prompt)].first;
  std::vector<http::TokenLogprob> out;
  http::TokenLogprob unknown;
  unknown.token = {std::string(tokenizer_.token_bytes(first)), first, 0.0f};
  unknown.known = false;
  out.push_back(std::move(unknown));
  const auto& rest = leader_of(content, sequence).choice.prompt_logprobs();
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

}  // namespace troupe
