// Flags of instances that compute prompts for others, and of those that have them computed.
#include "config/fields.h"

namespace troupe::config {

std::vector<Field> split_fields(SplitOptions& o) {
  return {
      {.name = "splitwise-role",
       .slot = choice(o.role, {"mixed", "prefill", "decode"}),
       .help =
           "decode: long prompts are computed by the prefill instances that --innode-prefill-ports or "
           "--prefill-engines names, and clients talk to this one; prefill: this one computes prompts for a "
           "decode instance, and answers requests of its own; mixed: neither"},
      {.name = "innode-prefill-ports",
       .slot = &o.prefill_ports,
       .help =
           "with --splitwise-role decode: the --engine-worker-queue-port of each prefill instance, of the "
           "same user on this machine; up to 4. Either may start first: until one is there, prompts are "
           "computed here",
       .min = 1,
       .max = 65535,
       .aliases = {"inner-prefill-ports"}},
      {.name = "prefill-min-tokens",
       .slot = &o.min_prompt_tokens,
       .help =
           "with --splitwise-role decode: a prompt with fewer tokens that are not cached is computed here",
       .unit = "tokens",
       .min = 1,
       .max = 1 << 24},
  };
}

}  // namespace troupe::config
