// Bodies of every API. What is accepted keeps its own limits.
#include "fuzz/target.h"
#include "http/api/messages_request.h"
#include "http/api/openai_request.h"
#include "http/api/responses_request.h"

namespace troupe::http {
namespace {

void check(const SamplingRequest& sampling, const config::LimitOptions& limits) {
  fuzz::require(sampling.n >= 1 && sampling.n <= limits.max_n, "n is within its limit");
}

template <class R>
void check_refusal(const Result<R>& result) {
  if (!result.ok()) fuzz::require(!result.status().message.empty(), "a refusal says why");
}

FUZZ_TARGET(json_request) {
  if (input.empty()) return;
  static const config::LimitOptions limits;
  static const ModelFacts model{{"m"}, 1000, true};
  const RequestRules rules{limits, model};
  const std::string_view body = fuzz::text(input.subspan(1));
  switch (input[0] % 7) {
    case 0: {
      const auto chat = parse_chat(body, rules, "id");
      check_refusal(chat);
      if (chat.ok()) check(chat->request.sampling, limits);
      break;
    }
    case 1: {
      const auto completion = parse_completion(body, rules, "id");
      check_refusal(completion);
      if (completion.ok()) check(completion->request.sampling, limits);
      break;
    }
    case 2: check_refusal(parse_responses(body, rules, "id")); break;
    case 3: check_refusal(parse_messages(body, rules, "id")); break;
    case 4: check_refusal(parse_tokenize(body, rules)); break;
    case 5: check_refusal(parse_detokenize(body, rules)); break;
    default: check_refusal(parse_count_tokens(body, rules)); break;
  }
}

}  // namespace
}  // namespace troupe::http
