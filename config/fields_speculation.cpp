// The flag of draft tokens.
#include "config/fields.h"
#include "config/speculation.h"

namespace troupe::config {

std::vector<Field> speculation_fields(SpeculationOptions& o) {
  const auto read = [&o] {
    if (auto given = parse_speculation(o.json)) o = *std::move(given);
  };
  return {
      {.name = "speculative-config",
       .slot = JsonText{&o.json, read},
       .help =
           "draft tokens, which the model verifies several at a time: answers stay the same. Such as "
           "{\"method\":\"ngram\",\"num_speculative_tokens\":4}: from what prompt and answer repeat, up to "
           "8; or {\"method\":\"mtp\",\"num_speculative_tokens\":1}: by the checkpoint's layer for "
           "multi-token prediction, or that in the directory \"model\", up to 5",
       .check = check_speculation,
       .refusal = unavailable_speculation},
  };
}

}  // namespace troupe::config
