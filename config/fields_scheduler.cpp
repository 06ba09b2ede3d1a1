// Flags of what a step holds and who waits.
#include "config/fields.h"

namespace troupe::config {

std::vector<Field> scheduler_fields(SchedulerOptions& o) {
  return {
      {.name = "max-model-len",
       .slot = &o.max_model_len,
       .help = "prompt and answer of one sequence together, at least 16",
       .unit = "tokens",
       .min = 0,
       .max = 1 << 24,
       .when_unset = "what the model allows and memory fits"},
      {.name = "found-model-len",
       .slot = &o.found_model_len,
       .help = "what an unset --max-model-len came to",
       .unit = "tokens",
       .hidden = true},
      {.name = "max-num-seqs",
       .slot = &o.max_num_seqs,
       .help = "sequences in one step",
       .min = 0,
       .max = 1024,
       .when_unset = "512 on cuda if that many find KV blocks, 32 on cpu"},
      {.name = "max-num-batched-tokens",
       .slot = &o.max_num_batched_tokens,
       .help = "tokens in one step: long prompts are cut into such chunks",
       .unit = "tokens",
       .min = 0,
       .max = 1 << 20,
       .when_unset = "8192 on cuda, 512 on cpu"},
      {.name = "block-size",
       .slot = &o.block_size,
       .help = "tokens of one KV block",
       .unit = "tokens",
       .min = 1,
       .max = 4096,
       .standing = Standing::refused,
       .reason = "KV blocks hold 64 tokens"},
      {.name = "max-num-partial-prefills",
       .slot = &o.max_num_partial_prefills,
       .help = "prompts that are computed at the same time; FastDeploy's 1 would let a long prompt hold up "
               "short ones",
       .min = 0,
       .max = 1 << 20,
       .when_unset = "as many as --max-num-seqs"},
      {.name = "max-long-partial-prefills",
       .slot = &o.max_long_partial_prefills,
       .help = "long prompts that are computed at the same time; shorter ones pass the next long one by",
       .min = 1,
       .max = 1 << 20},
      {.name = "long-prefill-token-threshold",
       .slot = &o.long_prefill_token_threshold,
       .help = "a prompt with more tokens left to compute is long",
       .unit = "tokens",
       .min = 0,
       .max = 1 << 24,
       .when_unset = "4 % of --max-model-len, at least a quarter of a step and 64"},
      {.name = "enable-v1-kvcache-scheduler",
       .slot = &o.preempts,
       .help = "prompts and answers share all KV blocks, and who finds none preempts the last one; off: a "
               "request waits until blocks for its prompt and its longest answer are reserved, and none is "
               "preempted",
       .env = "ENABLE_V1_KVCACHE_SCHEDULER"},
      {.name = "kv-cache-ratio",
       .slot = &o.kv_cache_ratio,
       .help = "share of the KV blocks that prompts may reserve with ENABLE_V1_KVCACHE_SCHEDULER=0; answers "
               "have the rest. About prompt / (prompt + answer) in tokens",
       .min = 0.01,
       .max = 1},
      {.name = "min-prefill-share",
       .slot = &o.min_prefill_share,
       .help = "share of a step, of its tokens and of its time, that prompts may take while few of them wait "
               "beside "
               "many sequences that decode; 1: always all of it. Less keeps the time between two tokens "
               "even, more "
               "lets prompts answer sooner",
       .min = 0,
       .max = 1,
       .when_unset = "a tenth, at least 512 tokens; a third of the time"},
      {.name = "max-prefill-step-ms",
       .slot = &o.max_prefill_step_ms,
       .help = "most time that a step with prompt tokens is to take, by the time of the steps before it: "
               "prompts are "
               "cut to that. In the first step of a short prompt long ones get a sixth of it. Less lets "
               "short prompts "
               "and running streams wait less behind long prompts, more computes long prompts sooner",
       .unit = "ms",
       .min = 0,
       .max = 1 << 20,
       .when_unset = "60 on cuda, 250 on cpu"},
      {.name = "batch-reserved-seqs",
       .slot = &o.batch_reserved_seqs,
       .help = "of --max-num-seqs, so many are never given to requests of batches, so that others find one "
               "at once",
       .min = -1,
       .max = 1024,
       .when_unset = "an eighth, at least one"},
      {.name = "max-queued-requests",
       .slot = &o.max_queued_requests,
       .help = "sequences that wait to run; one more gets 429, a request with more 400; 0: none behind "
               "another request",
       .min = 0,
       .max = 1 << 20},
      {.name = "max-queued-tokens",
       .slot = &o.max_queued_tokens,
       .help = "prompt tokens of all waiting requests, once for all choices of a prompt; more get 429, a "
               "request with more 400",
       .unit = "tokens",
       .min = 0},
  };
}

}  // namespace troupe::config
