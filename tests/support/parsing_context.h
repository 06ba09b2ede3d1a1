#pragma once
// What sessions share whose answers have thoughts and tool calls, as ERNIE's thinking models write them.
#include <memory>

#include "actors/session/submission.h"
#include "support/byte_tokenizer.h"

namespace troupe::testing {

/// The tokenizer whose texts parsing_context() has.
inline std::shared_ptr<const ByteTokenizer> parsing_tokenizer() {
  static const auto tokenizer = std::make_shared<const ByteTokenizer>(std::vector<std::string>{
      "<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>"});
  return tokenizer;
}

/// Ids of a text as parsing_context() knows them.
inline std::vector<TokenId> parsing_ids(std::string_view text) {
  return parsing_tokenizer()->encode(text, SpecialTokens::parse);
}

inline std::shared_ptr<const SessionContext> parsing_context() {
  const auto tokenizer = parsing_tokenizer();
  return std::make_shared<SessionContext>(
      SessionContext{tokenizer,
                     {ByteTokenizer::kEos},
                     1000,
                     tokenizer->vocab_size(),
                     *AnswerSyntax::make("ernie-x1", "ernie-x1", *tokenizer, {'\n'})});
}

}  // namespace troupe::testing
