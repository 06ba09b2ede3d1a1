#pragma once
// The form that holds an answer to its request's tools, as a structural tag for GRAMMAR.
#include "base/status.h"
#include "http/api/openai_request.h"
#include "text/parsers/answer_syntax.h"

namespace troupe {

/// The form of the text and calls behind the thoughts: with tool_choice required or named nothing but calls;
/// with auto free text, or text in the form `other`, and calls whose arguments fit their schemas. Calls are
/// written as `syntax` reads them; tags that are tokens are asked for as tokens. `other` may be free. A
/// combination without a form is an error.
Result<http::AnswerForm> tool_form(const http::Json& tools, const http::ToolRules& rules,
                                   const AnswerSyntax& syntax, const http::AnswerForm& other);

}  // namespace troupe
