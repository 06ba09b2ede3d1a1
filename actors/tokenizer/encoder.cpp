#include "actors/tokenizer/encoder.h"

#include <exception>

#include "text/detokenizer.h"

namespace troupe {
namespace {

/// Joins a content of several text parts to one string, a line each: templates of text models read strings
/// only. Parts of another kind have been refused before.
void join_text_parts(http::Json& messages) {
  for (auto& message : messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    std::string text;
    for (const auto& part : *content) {
      if (!text.empty()) text += '\n';
      text += part.value("text", "");
    }
    *content = std::move(text);
  }
}

std::string_view without_end_blanks(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return text.substr(0, last == text.npos ? 0 : last + 1);
}

/// Cuts off what the template puts behind the text of the last message. False if that text is not what comes last of
/// all that the client wrote.
bool end_with_last_message(std::vector<TextSpan>& spans, const http::Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return false;
  const std::string_view text = without_end_blanks(content->get_ref<const std::string&>());
  while (!spans.empty() && spans.back().trusted) spans.pop_back();
  if (text.empty() || spans.empty()) return false;
  const std::string_view last = without_end_blanks(spans.back().text);
  // The template may have cut the text into several pieces, or blanks from its ends.
  return !last.empty() && text.ends_with(last);
}

}  // namespace

Encoded Encoder::encode(Encode job) const {
  Encoded out;
  try {
    if (job.api == Api::detokenize) {
      out.status = check_ids(job.source.ids);
      if (!out.status.ok()) return out;
      Detokenizer text(tokenizer_, /*skip_special_tokens=*/false);
      for (const auto& ids : job.source.ids) {
        for (const TokenId id : ids) out.text += text.append(id);
      }
      out.text += text.flush();
      return out;
    }
    if (!job.source.conversation.messages.is_null()) {
      auto prompt = chat(job.source.conversation);
      if (!prompt.ok()) {
        out.status = prompt.status();
        return out;
      }
      out.prompts.push_back(*std::move(prompt));
    }
    for (const std::string& text : job.source.texts) {
      out.prompts.push_back(tokenizer_->encode(text, SpecialTokens::parse));
    }
    out.status = check_ids(job.source.ids);
    for (auto& ids : job.source.ids) out.prompts.push_back(std::move(ids));
  } catch (const std::exception& error) {
    out.status = failure(Code::internal, std::string("tokenising failed: ") + error.what());
  }
  return out;
}

Result<std::vector<TokenId>> Encoder::chat(http::Conversation& conversation) const {
  if (conversation.without_template) {
    const http::Json& first = conversation.messages.at(0);
    const auto content = first.find("content");
    if (content == first.end() || !content->is_string()) {
      return invalid("without a chat template the first message's content must be a string", "messages.0.content",
                     "invalid_type");
    }
    return tokenizer_->encode(content->get_ref<const std::string&>(), SpecialTokens::parse);
  }
  if (template_ == nullptr) {
    return invalid("this model has no chat template: use /v1/completions, or start the server with "
                   "--chat-template FILE", "messages", "no_chat_template");
  }
  join_text_parts(conversation.messages);
  auto spans = template_->render(conversation.messages, conversation.tools, conversation.template_kwargs,
                                 conversation.add_generation_prompt);
  if (!spans.ok()) {
    Status status = spans.status();
    if (status.param.empty()) status.param = "messages";
    return status;
  }
  if (conversation.continue_final_message && !end_with_last_message(*spans, conversation.messages.back())) {
    return invalid("this model's chat template does not end with the text of the last message, so it cannot be continued",
                   "continue_final_message", "invalid_value");
  }
  return tokenizer_->encode(*spans);
}

Status Encoder::check_ids(const std::vector<std::vector<TokenId>>& prompts) const {
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    for (std::size_t i = 0; i < prompts[p].size(); ++i) {
      const TokenId id = prompts[p][i];
      if (id >= 0 && id < tokenizer_->vocab_size()) continue;
      return invalid("token id " + std::to_string(id) + " is outside the vocabulary: allowed are 0 to " +
                         std::to_string(tokenizer_->vocab_size() - 1),
                     "prompt." + std::to_string(prompts.size() > 1 ? p : i), "token_out_of_range");
    }
  }
  return {};
}

}  // namespace troupe
