#include "actors/tokenizer/encoder.h"

#include <algorithm>

#include "base/contain.h"
#include "base/utf8.h"
#include "http/api/messages_answer.h"
#include "http/api/openai_response.h"
#include "text/detokenizer.h"

namespace troupe {
namespace {

std::string_view without_end_blanks(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return text.substr(0, last == text.npos ? 0 : last + 1);
}

/// Cuts off what the template puts behind the text of the last message. False if that text is not what comes
/// last of all that the client wrote.
bool end_with_last_message(std::vector<TextSpan>& spans, const http::Json& message) {
  const std::string* content = json::text(json::member(message, "content"));
  if (content == nullptr) return false;
  const std::string_view text = without_end_blanks(*content);
  while (!spans.empty() && spans.back().trusted) spans.pop_back();
  if (text.empty() || spans.empty()) return false;
  const std::string_view last = without_end_blanks(spans.back().text);
  // The template may have cut the text into several pieces, or blanks from its ends.
  return !last.empty() && text.ends_with(last);
}

}  // namespace

EncoderBounds bounds_of(const Tokenizer& tokenizer, std::int32_t max_model_len) {
  std::size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.token_bytes(id).size());
  return {max_model_len, longest * static_cast<std::size_t>(std::max(max_model_len, 1))};
}

Encoded Encoder::encode(Encode job, const Log& log) const {
  Encoded out;
  Status status;
  const Status fault = contain(log, "tokenizer", job.request_id, [&] { status = encode_source(job, out); });
  out.status = fault.ok() ? std::move(status) : fault;
  return out;
}

Status Encoder::encode_source(Encode& job, Encoded& out) const {
  if (job.api == Api::detokenize) {
    Detokenizer detokenizer(tokenizer_, /*skip_special_tokens=*/false);
    std::string text;
    for (const auto& ids : job.source.ids) {
      for (const TokenId id : ids) text += detokenizer.append(id);
    }
    text += detokenizer.flush();
    out.answer = http::format_detokenized(text);
    return {};
  }
  for (const std::string& text : job.source.texts) {
    if (Status status = check_bytes(text.size(), job, "prompt"); !status.ok()) return status;
  }
  if (!job.source.conversation.messages.is_null()) {
    auto prompt = chat(job.source.conversation, job);
    if (!prompt.ok()) return prompt.status();
    out.prompts.push_back(*std::move(prompt));
  }
  for (const std::string& text : job.source.texts) {
    out.prompts.push_back(tokenizer_->encode(text, SpecialTokens::parse));
  }
  if (job.echo) add_texts(job, out);
  for (auto& ids : job.source.ids) out.prompts.push_back(std::move(ids));
  if (!http::generates(job.api)) out.answer = tokenized(job, out);
  return ban_words(job.bad_words, out.bans);
}

/// What the answer repeats of the prompts: texts as they came, ids as text. A prompt that is too long for the
/// model is refused later, so its text is not made.
void Encoder::add_texts(Encode& job, Encoded& out) const {
  for (std::string& text : job.source.texts) out.texts.push_back({std::move(text), 0});
  for (const auto& ids : job.source.ids) {
    std::string& text = out.texts.emplace_back().text;
    const auto kept = static_cast<std::size_t>(
        std::min<std::uint64_t>(ids.size(), static_cast<std::uint64_t>(job.echo_tokens)));
    if (bounds_.max_model_len > 0 && kept > static_cast<std::size_t>(bounds_.max_model_len)) continue;
    Detokenizer detokenizer(tokenizer_, /*skip_special_tokens=*/false);
    for (std::size_t i = ids.size() - kept; i < ids.size(); ++i) text += detokenizer.append(ids[i]);
    text += detokenizer.flush();
  }
  for (PromptText& prompt : out.texts) prompt.chars = static_cast<std::int64_t>(utf8::length(prompt.text));
}

Status Encoder::check_bytes(std::size_t bytes, const Encode& job, const char* field) const {
  if (bytes <= bounds_.max_text_bytes || !http::generates(job.api)) return {};
  return invalid("the prompt has " + std::to_string(bytes) + " bytes, which are more than the " +
                     std::to_string(bounds_.max_model_len) +
                     " tokens that this model takes in all: shorten the prompt",
                 field, "context_length_exceeded");
}

Status Encoder::ban_words(const std::vector<std::string>& words, std::vector<wire::LogitBias>& bans) const {
  for (const std::string& word : words) {
    const std::size_t before = bans.size();
    for (const std::string& form : {word, " " + word}) {
      const auto ids = tokenizer_->encode(form, SpecialTokens::plain);
      if (ids.size() == 1) bans.push_back({ids.front(), -1e10f});
    }
    if (bans.size() > before) continue;
    return invalid("bad_words: \"" + word.substr(0, 64) + "\" is not a single token of this model",
                   "bad_words", "invalid_value");
  }
  return {};
}

std::string Encoder::tokenized(const Encode& job, const Encoded& out) const {
  const std::vector<TokenId>& ids = out.prompts.front();
  if (job.api == Api::count_tokens) {
    return http::format_token_count(static_cast<std::int64_t>(ids.size()));
  }
  std::vector<std::string> pieces;
  if (job.token_strs) {
    for (const TokenId id : ids) pieces.emplace_back(tokenizer_->token_bytes(id));
  }
  return http::format_tokenized(ids, bounds_.max_model_len, pieces);
}

Result<std::vector<TokenId>> Encoder::chat(http::Conversation& conversation, const Encode& job) const {
  if (conversation.without_template) {
    const auto messages = json::items(conversation.messages);
    const std::string* content =
        messages.empty() ? nullptr : json::text(json::member(&messages.front(), "content"));
    if (content == nullptr) {
      return invalid("without a chat template the first message's content must be a string",
                     "messages.0.content", "invalid_type");
    }
    const std::string& text = *content;
    if (Status status = check_bytes(text.size(), job, "messages"); !status.ok()) return status;
    return tokenizer_->encode(text, SpecialTokens::parse);
  }
  if (template_ == nullptr) {
    return invalid(
        "this model has no chat template: use /v1/completions, or start the server with "
        "--chat-template FILE",
        "messages", "no_chat_template");
  }
  plain_messages_.apply(conversation.messages);
  auto spans = template_->render(conversation.messages, conversation.tools, conversation.template_kwargs,
                                 conversation.add_generation_prompt);
  if (!spans.ok()) {
    Status status = spans.status();
    if (status.param.empty()) status.param = "messages";
    return status;
  }
  if (conversation.continue_final_message && !end_with_last_message(*spans, conversation.messages.back())) {
    return invalid(
        "this model's chat template does not end with the text of the last message, so it cannot be "
        "continued",
        "continue_final_message", "invalid_value");
  }
  std::size_t bytes = 0;
  for (const TextSpan& span : *spans) bytes += span.text.size();
  if (Status status = check_bytes(bytes, job, "messages"); !status.ok()) return status;
  return tokenizer_->encode(*spans);
}

}  // namespace troupe
