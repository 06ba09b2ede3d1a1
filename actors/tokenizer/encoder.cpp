#include "actors/tokenizer/encoder.h"

#include <exception>
#include <limits>
#include <stdexcept>

#include "http/json_body.h"
#include "text/detokenizer.h"

namespace troupe {
namespace {

/// Text that http/ has bounded and validated already; an empty string is null. Its parser is taken again: the
/// library's own looks every key of an object up among the ones before it.
http::Json parsed(const std::string& text) {
  if (text.empty()) return nullptr;
  constexpr http::JsonBounds kAny{std::numeric_limits<int>::max(), std::numeric_limits<std::int64_t>::max()};
  auto json = http::parse_json(text, kAny);
  if (!json.ok()) throw std::runtime_error(json.status().message);
  return *std::move(json);
}

/// A content of several text parts becomes one string, a line each: templates of text models know no
/// other. Parts of another kind have been refused before.
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

}  // namespace

Encoded Encoder::encode(const Encode& job) const {
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
    if (!job.source.messages.empty()) {
      auto prompt = chat(job.source);
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
    for (const auto& ids : job.source.ids) out.prompts.push_back(ids);
  } catch (const std::exception& error) {
    out.status = failure(Code::internal, std::string("tokenising failed: ") + error.what());
  }
  return out;
}

Result<std::vector<TokenId>> Encoder::chat(const Source& source) const {
  if (source.without_template) {
    const auto messages = parsed(source.messages);
    const auto content = messages.at(0).find("content");
    if (content == messages.at(0).end() || !content->is_string()) {
      return invalid("without a chat template the first message's content must be a string", "messages.0.content",
                     "invalid_type");
    }
    return tokenizer_->encode(content->get<std::string>(), SpecialTokens::parse);
  }
  if (template_ == nullptr) {
    return invalid("this model has no chat template: use /v1/completions, or start the server with "
                   "--chat-template FILE", "messages", "no_chat_template");
  }
  auto messages = parsed(source.messages);
  join_text_parts(messages);
  auto spans = template_->render(messages, parsed(source.tools), parsed(source.template_kwargs),
                                 source.add_generation_prompt);
  if (!spans.ok()) {
    Status status = spans.status();
    if (status.param.empty()) status.param = "messages";
    return status;
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
