#pragma once
// The one list of the fields of request bodies: what is no field of an API is reported as unknown, and
// /openapi.json describes the rest. Bounds here are those that the readers enforce; a test compares them.
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "http/api/api.h"
#include "http/api/json_body.h"

namespace troupe::http {

inline constexpr ApiSet kChatApi = bit(Api::chat);
inline constexpr ApiSet kCompletionsApi = bit(Api::completions);
inline constexpr ApiSet kTokenizeApi = bit(Api::tokenize);
inline constexpr ApiSet kDetokenizeApi = bit(Api::detokenize);
inline constexpr ApiSet kResponsesApi = bit(Api::responses);
inline constexpr ApiSet kMessagesApi = bit(Api::messages);
inline constexpr ApiSet kCountTokensApi = bit(Api::count_tokens);
inline constexpr ApiSet kEmbeddingsApi = bit(Api::embeddings);

enum class FieldType : std::uint8_t { boolean, integer, number, string, list, object, any };

/// An interval without a border on a side that is not finite.
struct FieldBounds {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};

struct RequestField {
  std::string_view name;
  ApiSet apis;
  FieldType type;
  std::string_view about;  ///< empty: accepted without effect, because clients send it
  FieldBounds bounds{};    ///< of integer and number
};

/// Sorted by name. A name that has two meanings has two rows, of different APIs.
std::span<const RequestField> request_fields();

/// The names of members of `body` that are no fields of any of `apis`: at most 8, cut to 64 bytes.
std::vector<std::string> unknown_fields(const Json& body, ApiSet apis);

/// What of the body has no effect on the answer: unknown_fields(), and at most 16 of `left_out`
/// (Fields::left_out). `strict`: the first of them is an error instead, "unknown_parameter".
Result<std::vector<std::string>> ignored_fields(const Json& body, ApiSet apis, bool strict,
                                                std::span<const std::string> left_out);

/// The fields that mean the same for chat, responses and messages.
bool is_shared(const RequestField& field);

}  // namespace troupe::http
