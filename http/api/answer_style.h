#pragma once
// The API in whose format an answer and its errors are written.
#include <cstdint>

namespace troupe::http {

enum class AnswerStyle : std::uint8_t {
  openai,     ///< chat completions, completions, and every page without a style of its own
  responses,  ///< OpenAI's /v1/responses: its errors are those of `openai`
  messages,   ///< Anthropic's /v1/messages
};

}  // namespace troupe::http
