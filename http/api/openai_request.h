#pragma once
// Request bodies with OpenAI's fields (and FastDeploy's additions) → plain structs, with every check that
// does not need the model's weights or tokenizer. All client JSON comes in here: nesting and element counts
// are bounded, numbers go through checked getters, and a failure names the field by its dotted path
// ("messages.0.role"), what was found and what is allowed. Nothing here throws.
//
// null means absent everywhere. Unknown top-level fields are ignored and reported by name; client_policy.h
// says what else is.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "http/api/request.h"

namespace troupe::http {

/// What is known about the model before its weights are loaded. Immutable while a server runs.
struct ModelFacts {
  std::vector<std::string> names;  ///< every name a request may use; empty: any name passes
  std::int64_t vocab_size = 0;     ///< bounds the token ids of requests; 0: only 0 … 2^31-1 is checked
  bool offers_forms = true;  ///< answers can be held to a form; false with --guided-decoding-backend off
};

struct RequestRules {
  const config::LimitOptions& limits;
  const ModelFacts& model;
};

/// The request, and what of it has no effect: unknown top-level fields (at most 8, cut to 64 bytes), and the
/// paths of what client_policy.h leaves out (at most 16).
template <class T>
struct Parsed {
  T request;
  std::vector<std::string> ignored_fields;
};

/// `fallback_id` becomes part of the answer's id when the request names none ("chatcmpl-" + it).
Result<Parsed<ChatRequest>> parse_chat(std::string_view body, const RequestRules& rules,
                                       std::string_view fallback_id);
Result<Parsed<CompletionRequest>> parse_completion(std::string_view body, const RequestRules& rules,
                                                   std::string_view fallback_id);
Result<Parsed<TokenizeRequest>> parse_tokenize(std::string_view body, const RequestRules& rules);
Result<Parsed<DetokenizeRequest>> parse_detokenize(std::string_view body, const RequestRules& rules);

}  // namespace troupe::http
