#include "actors/scheduler/worker_limits.h"

#include <algorithm>

namespace troupe {
namespace {

/// At most as many slots as a plan can have rows.
constexpr std::int32_t kMaxSlots = 4096;
constexpr std::int32_t kMaxStepsInFlight = 8;
/// Without an option, prompts of up to so many tokens are short however little the model takes, and so are
/// those of which a step holds this many: it takes several, and none is held up.
constexpr std::int32_t kLeastLongPrompt = 64;
constexpr std::int32_t kShortPromptsOfAStep = 4;
/// Without an option, the share of a step that prompts may take beside decodes, in tokens and in time, and
/// the least tokens: steps of fewer take hardly less time.
constexpr double kPrefillShare = 0.1, kPrefillTimeShare = 1.0 / 3;
constexpr std::int32_t kLeastPromptTokens = 512;

/// Without an option, the part of the slots that requests of batches leave free.
constexpr std::int32_t kReservedPart = 8;

std::int32_t limited(int option, std::int32_t capacity) {
  return std::max(0, option > 0 ? std::min(option, capacity) : capacity);
}

}  // namespace

WorkerLimits WorkerLimits::of(const config::SchedulerOptions& options, const wire::Capacity& capacity) {
  WorkerLimits limits;
  limits.block_tokens = std::max(1, capacity.block_tokens);
  limits.total_blocks = std::max(0, capacity.kv_blocks);
  limits.prompt_blocks = static_cast<std::int32_t>(options.kv_cache_ratio * limits.total_blocks);
  limits.vocab_size = capacity.vocab_size;
  limits.max_logprobs = capacity.max_logprobs;
  limits.embedding_width = std::max(0, capacity.embedding_width);
  limits.media_tokens = std::max(0, capacity.media_tokens);
  limits.frame_patches = capacity.frame_patches;
  limits.swaps = capacity.swap_blocks > 0;
  limits.step_tokens = limited(options.max_num_batched_tokens, capacity.max_tokens_per_step);
  const double share = options.min_prefill_share > 0 ? options.min_prefill_share : kPrefillShare;
  limits.least_prompt_tokens = std::max(options.min_prefill_share > 0 ? 1 : kLeastPromptTokens,
                                        static_cast<std::int32_t>(share * limits.step_tokens));
  limits.least_prompt_share = options.min_prefill_share > 0 ? options.min_prefill_share : kPrefillTimeShare;
  const std::int64_t positions = std::int64_t{limits.total_blocks} * limits.block_tokens;
  limits.max_length = static_cast<std::int32_t>(
      std::min<std::int64_t>(limited(options.max_model_len, capacity.max_model_len), positions));
  limits.long_prompt =
      options.long_prefill_token_threshold > 0
          ? options.long_prefill_token_threshold
          : std::max({kLeastLongPrompt, limits.max_length / 25, limits.step_tokens / kShortPromptsOfAStep});
  limits.slots = std::min({limited(options.max_num_seqs, capacity.max_slots), limits.step_tokens, kMaxSlots});
  const std::int32_t reserved = options.batch_reserved_seqs >= 0 ? options.batch_reserved_seqs
                                                                 : std::max(1, limits.slots / kReservedPart);
  limits.background_slots = std::max(1, limits.slots - reserved);
  limits.max_drafts = std::max(0, capacity.max_drafts);
  limits.max_proposed = std::clamp(capacity.max_proposed, 0, limits.max_drafts);
  if (limits.max_drafts > 0) limits.max_sampled = std::max(limits.slots, capacity.max_sampled);
  limits.steps_in_flight = std::clamp(capacity.max_steps_in_flight, 1, kMaxStepsInFlight);
  return limits;
}

}  // namespace troupe
