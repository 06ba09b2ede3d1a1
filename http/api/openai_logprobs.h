#pragma once
// The forms in which OpenAI reports log-probabilities. For the writers of answers.
#include <cstdint>
#include <span>
#include <string>

#include "http/api/openai_response.h"

namespace troupe::http {

/// The lists of scores in those forms.
enum class ScoreList : std::uint8_t {
  chat,    ///< {"token","logprob","bytes","top_logprobs":[…]}
  tokens,  ///< completions, as are the next three: the tokens' text
  token_logprobs,
  top_logprobs,
  text_offset,
  prompt,  ///< prompt_logprobs
};

/// Appends elements of a list, without its brackets, with commas between them and, unless `first`, before
/// them. `offset`: of the first score in code points; moved on behind the last by ScoreList::text_offset,
/// else left alone.
void append_scores(std::string& out, ScoreList list, std::span<const TokenLogprob> scores, bool first,
                   std::int64_t& offset);

/// Code points that the token adds to the text. Of a character that is cut between tokens, the first has it.
std::int64_t text_chars(const TokenLogprob& score);

/// chat: {"content":[{"token","logprob","bytes","top_logprobs":[…]}, …],"refusal":null}
void append_chat_logprobs(std::string& out, std::span<const TokenLogprob> tokens);

/// completions: {"tokens":[],"token_logprobs":[],"top_logprobs":[{}],"text_offset":[]}; offsets count code
/// points from `text_offset` on. A token that is not whole UTF-8 is written as "bytes:\xe4\xbd".
void append_completion_logprobs(std::string& out, std::span<const TokenLogprob> tokens,
                                std::int64_t text_offset);

/// prompt_logprobs: null, or per position {"<id>":{"logprob","rank","decoded_token"}}; null where unknown.
void append_prompt_logprobs(std::string& out, std::span<const TokenLogprob> tokens);

}  // namespace troupe::http
