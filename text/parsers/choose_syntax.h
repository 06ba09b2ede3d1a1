#pragma once
// Which parsers read a model's answers: the flags, or what its chat template shows.
#include "base/status.h"
#include "config/options.h"
#include "text/parsers/answer_syntax.h"
#include "text/template/chat_template.h"

namespace troupe {

/// The syntax that `options` name. When no tool parser is named, it is hermes if the template writes
/// <tool_call> around calls and the vocabulary has no token for that tag; else none. `chat` may be null.
Result<AnswerSyntax> choose_syntax(const config::AnswerOptions& options, const Tokenizer& tokenizer,
                                   const ChatTemplate* chat);

}  // namespace troupe
