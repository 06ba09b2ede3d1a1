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
       .help = "draft tokens, the same answers: {\"method\":\"ngram\",\"num_speculative_tokens\":4}, up to "
               "8, from prompt and answer; {\"method\":\"mtp\",\"num_speculative_tokens\":1}, up to 5, by "
               "the checkpoint's layer or that in the directory \"model\"",
       .check = check_speculation,
       .refusal = unavailable_speculation},
  };
}

}  // namespace troupe::config
