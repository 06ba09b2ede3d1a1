#pragma once
// Answers of /v1/embeddings, in pieces: they may be long.
#include <cstdint>
#include <span>
#include <string>

#include "http/api/openai_response.h"
#include "http/api/request.h"

namespace troupe::http {

/// The header that says what a model without a trained embedding yields, and its value.
inline constexpr const char* kEmbeddingsHeader = "x-troupe-embeddings";
inline constexpr const char* kUntrained = "last token of a model that was not trained for embeddings";

/// What stands before the first element of `data`.
void append_embeddings_begin(std::string& out);

/// The element of the input of this index: `values` cut and normalised as `form` says. An embedding without
/// a direction, all zeros, stays as it is.
void append_embedding(std::string& out, const EmbeddingForm& form, std::int32_t index,
                      std::span<const float> values);

/// What stands behind the last.
void append_embeddings_end(std::string& out, const Answer& answer, const Usage& usage);

}  // namespace troupe::http
