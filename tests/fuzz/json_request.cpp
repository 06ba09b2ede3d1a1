// Bodies of every API. What is accepted keeps its own limits.
#include <iterator>

#include "fuzz/target.h"
#include "http/api/messages_request.h"
#include "http/api/openai_request.h"
#include "http/api/responses_request.h"

namespace troupe::http {
namespace {

void check(const Result<Parsed>& result, const config::LimitOptions& limits) {
  if (!result.ok()) return fuzz::require(!result.status().message.empty(), "a refusal says why");
  const std::int32_t n = result->request.generation.choices;
  fuzz::require(n >= 1 && n <= limits.max_n, "n is within its limit");
}

FUZZ_TARGET(json_request) {
  if (input.empty()) return;
  static const config::LimitOptions limits;
  static const ModelFacts model{{"m"}, 1000, true};
  const RequestRules rules{limits, model};
  const std::string_view body = fuzz::text(input.subspan(1));
  constexpr decltype(&parse_chat) kParsers[] = {parse_chat,        parse_completion, parse_responses,
                                                parse_messages,    parse_tokenize,   parse_detokenize,
                                                parse_count_tokens};
  check(kParsers[input[0] % std::size(kParsers)](body, rules), limits);
}

}  // namespace
}  // namespace troupe::http
