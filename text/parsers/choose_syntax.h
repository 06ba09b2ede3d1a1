#pragma once
// Which parsers read a model's answers: the flags, or what its chat template shows.
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "text/parsers/answer_syntax.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

/// The tokens of thinking_end_text(), for AnswerOptions::found_thinking_end.
Result<std::vector<TokenId>> encode_thinking_end(const config::AnswerOptions& options,
                                                 const Tokenizer& tokenizer);

/// The syntax that `options` name, found_thinking_end among them. When no tool parser is named, it is hermes
/// if the template writes <tool_call> around calls and the vocabulary has no token for that tag; else none.
/// `chat` may be null.
Result<AnswerSyntax> choose_syntax(const config::AnswerOptions& options, const TokenTexts& texts,
                                   const ChatTemplate* chat);

}  // namespace troupe
