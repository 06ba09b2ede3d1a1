// Flags of instances that compute prompts for others, and of those that have them computed.
#include "config/fields.h"

namespace troupe::config {

std::vector<Field> split_fields(SplitOptions& o) {
  return {
      {.name = "splitwise-role",
       .slot = choice(o.role, {"mixed", "prefill", "decode"}),
       .help = "decode: instances of --innode-prefill-ports or --prefill-engines compute long prompts; "
               "prefill: such an instance, which answers requests of its own too; mixed: neither"},
      {.name = "innode-prefill-ports",
       .slot = &o.prefill_ports,
       .help = "with --splitwise-role decode: the --engine-worker-queue-port of each prefill instance of "
               "this user and machine, up to 4; they may start later",
       .min = 1,
       .max = 65535,
       .aliases = {"inner-prefill-ports"}},
      {.name = "prefill-min-tokens",
       .slot = &o.min_prompt_tokens,
       .help = "with --splitwise-role decode: a prompt with fewer uncached tokens is computed here",
       .unit = "tokens",
       .min = 1,
       .max = 1 << 24},
      {.name = "kv-transfer",
       .slot = choice(o.kv_transfer, {"auto", "nccl"}),
       .help = "with --splitwise-role decode: how KV blocks come from another GPU of this machine. auto: its "
               "memory is read, and by NCCL where it cannot be; nccl: by NCCL"},
  };
}

}  // namespace troupe::config
