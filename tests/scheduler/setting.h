#pragma once
// The options and the worker of one simulation, and how its random requests look.
#include <cstddef>
#include <cstdint>

#include "actors/scheduler/scheduler.h"
#include "config/options.h"
#include "ipc/wire.h"

namespace troupe::test {

struct Setting {
  std::int32_t blocks = 40, block_tokens = 4, slots = 6, budget = 16, max_length = 60, vocab = 50,
               in_flight = 2;
  int queued = 64;
  std::int64_t queued_tokens = 1 << 20;
  std::size_t max_ids = wire::kMaxTokensInPlan;
  int long_prompt = 12;  ///< more tokens than this are a long prompt
  std::int32_t swap_blocks = 0;
  double swap_failures = 0;  ///< share of copies from or to the swap space that fail
  double poison = 0;         ///< share of sampled rows whose logits are not finite
  PrefixCaching caching = {true, true, {1, 2}};
  double prefill_share = 0;
  bool preempts = true;
  double ratio = 0.75;    ///< of blocks for prompts when nothing preempts
  double repeats = 0.6;   ///< share of prompts that begin like an earlier text
  bool grammars = false;  ///< some sequences may have one
  int step_ms = 0;        ///< --max-prefill-step-ms of a worker that takes token_ns for a token
  std::int64_t token_ns = 0;
  std::int32_t max_logprobs = 20;
  std::int32_t media_tokens = 0;  ///< of encoder output; 0: the model sees nothing, and no prompt has images
  double media_failures = 0;      ///< share of images whose patches are gone
  std::int32_t drafts = 0;        ///< draft tokens of a row; 0: the worker makes none
  std::int32_t drafted_rows = 6;  ///< with drafts: rows of logits beyond one a slot
  bool proposes = true;           ///< with drafts: also of sequences with a grammar
  double late = 0;                ///< share of masks that are not made in time
  double batches = 0;             ///< share of requests that are background sequences
};

inline config::SchedulerOptions options_of(const Setting& s) {
  config::SchedulerOptions o;
  o.max_num_seqs = s.slots;
  o.max_num_batched_tokens = s.budget;
  o.long_prefill_token_threshold = s.long_prompt;
  o.min_prefill_share = s.prefill_share;
  o.max_prefill_step_ms = s.step_ms;
  o.preempts = s.preempts;
  o.kv_cache_ratio = s.ratio;
  o.max_queued_requests = s.queued;
  o.max_queued_tokens = s.queued_tokens;
  return o;
}

inline wire::Capacity capacity_of(const Setting& s) {
  wire::Capacity c;
  c.kv_blocks = s.blocks;
  c.block_tokens = s.block_tokens;
  c.max_slots = s.slots;
  c.max_tokens_per_step = s.budget;
  c.max_model_len = s.max_length;
  c.vocab_size = s.vocab;
  c.max_steps_in_flight = s.in_flight;
  c.swap_blocks = s.swap_blocks;
  c.media_tokens = s.media_tokens;
  c.max_drafts = s.drafts;
  c.max_proposed = s.proposes ? s.drafts : 0;
  c.max_sampled = s.drafts > 0 ? s.slots + s.drafted_rows : 0;
  return c;
}

}  // namespace troupe::test
