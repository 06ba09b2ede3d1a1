#pragma once
// What sessions share whose answers have thoughts and tool calls, as ERNIE's thinking models write them.
#include <memory>

#include "actors/session/submission.h"
#include "support/byte_tokenizer.h"

namespace troupe::testing {

inline std::shared_ptr<const SessionContext> parsing_context() {
  const auto tokenizer = std::make_shared<ByteTokenizer>(std::vector<std::string>{
      "<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>"});
  return std::make_shared<SessionContext>(SessionContext{tokenizer, {ByteTokenizer::kEos}, 1000, tokenizer->vocab_size(),
                                                         *AnswerSyntax::make("ernie-x1", "ernie-x1", *tokenizer)});
}

}  // namespace troupe::testing
