#include "text/parsers/choose_syntax.h"

namespace troupe {

Result<std::vector<TokenId>> encode_thinking_end(const config::AnswerOptions& options,
                                                 const Tokenizer& tokenizer) {
  const auto text = thinking_end_text(options.reasoning_parser, options.thinking_end_text);
  if (!text.ok()) return text.status();
  return tokenizer.encode(*text, SpecialTokens::plain);
}

Result<AnswerSyntax> choose_syntax(const config::AnswerOptions& options, const TokenTexts& texts,
                                   const ChatTemplate* chat) {
  std::string tools = options.tool_call_parser;
  const std::string tag(tag_text(Tag::tool_call));
  const bool shows_calls = chat != nullptr && chat->reads("tools") && chat->mentions_with_tools(tag);
  if (tools.empty() && shows_calls && !texts.token_id(tag)) tools = "hermes";
  return AnswerSyntax::make(options.reasoning_parser, tools, texts, options.found_thinking_end);
}

}  // namespace troupe
