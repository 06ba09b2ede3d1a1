#pragma once
// Bodies of /v1/embeddings: OpenAI's fields and FastDeploy's, with an input or a conversation.
#include <string_view>

#include "http/api/openai_request.h"

namespace troupe::http {

/// Inputs of one request.
inline constexpr int kMostEmbeddingInputs = 2048;

Result<Parsed> parse_embeddings(std::string_view body, const RequestRules& rules);

}  // namespace troupe::http
