#pragma once
// Which API a request came by. Its parser, its answer and the words of its errors depend on this one value.
#include <cstdint>
#include <string_view>

namespace troupe::http {

enum class Api : std::uint8_t {
  chat,
  completions,
  responses,
  messages,
  count_tokens,
  tokenize,
  detokenize,
  embeddings
};

/// Some of them, as bits.
using ApiSet = std::uint16_t;

constexpr ApiSet bit(Api api) { return static_cast<ApiSet>(1u << static_cast<unsigned>(api)); }

/// The model runs for it.
constexpr bool generates(Api api) {
  return api == Api::chat || api == Api::completions || api == Api::responses || api == Api::messages ||
         api == Api::embeddings;
}

/// The model writes the next turn of a conversation.
constexpr bool is_chat(Api api) {
  return generates(api) && api != Api::completions && api != Api::embeddings;
}

/// Errors have the form of Anthropic's, else that of OpenAI's.
constexpr bool is_anthropic(Api api) { return api == Api::messages || api == Api::count_tokens; }

constexpr std::string_view to_string(Api api) {
  switch (api) {
    case Api::chat: return "chat";
    case Api::completions: return "completions";
    case Api::responses: return "responses";
    case Api::messages: return "messages";
    case Api::count_tokens: return "count_tokens";
    case Api::tokenize: return "tokenize";
    case Api::detokenize: return "detokenize";
    case Api::embeddings: return "embeddings";
  }
  return "unknown";
}

}  // namespace troupe::http
