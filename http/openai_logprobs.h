#pragma once
// The forms in which OpenAI reports log-probabilities. Private to the writers of answers.
#include <cstdint>
#include <span>
#include <string>

#include "http/openai_response.h"

namespace troupe::http {

/// chat: {"content":[{"token","logprob","bytes","top_logprobs":[…]}, …],"refusal":null}
void append_chat_logprobs(std::string& out, std::span<const TokenLogprob> tokens);

/// completions: {"tokens":[],"token_logprobs":[],"top_logprobs":[{}],"text_offset":[]}; offsets count code
/// points from `text_offset` on. A token that is not whole UTF-8 is written as "bytes:\xe4\xbd".
void append_completion_logprobs(std::string& out, std::span<const TokenLogprob> tokens,
                                std::int64_t text_offset);

/// prompt_logprobs: null, or per position {"<id>":{"logprob","rank","decoded_token"}}; null where unknown.
void append_prompt_logprobs(std::string& out, std::span<const TokenLogprob> tokens);

}  // namespace troupe::http
