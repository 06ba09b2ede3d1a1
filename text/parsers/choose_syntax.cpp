#include "text/parsers/choose_syntax.h"

namespace troupe {

Result<AnswerSyntax> choose_syntax(const config::AnswerOptions& options, const Tokenizer& tokenizer,
                                   const ChatTemplate* chat) {
  std::string tools = options.tool_call_parser;
  const std::string tag(tag_text(Tag::tool_call));
  const bool shows_calls = chat != nullptr && chat->reads("tools") && chat->mentions_with_tools(tag);
  if (tools.empty() && shows_calls && !tokenizer.token_id(tag)) tools = "hermes";
  return AnswerSyntax::make(options.reasoning_parser, tools, tokenizer, options.thinking_end_text);
}

}  // namespace troupe
