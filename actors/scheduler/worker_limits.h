#pragma once
// What the attached worker can hold, and what of it the options let the scheduler use.
#include <cstdint>

#include "config/options.h"
#include "ipc/wire.h"

namespace troupe {

/// Tokens of prompts that a step runs while one of them is to be handed over: what a step has filled is
/// copied while the next one runs.
inline constexpr std::int32_t kHandOverTokens = 2048;

/// A value, computed once for each worker. Every limit is the smaller one of the option and of the worker's
/// capacity.
struct WorkerLimits {
  static WorkerLimits of(const config::SchedulerOptions& options, const wire::Capacity& capacity);

  /// False before the first worker: nothing can be checked against its vocabulary and lengths.
  bool known() const { return vocab_size != 0; }
  /// Tokens that a sequence may have, with the one that is sampled behind a prompt which is embedded: that
  /// one is never run, and is no part of the answer.
  std::int32_t longest(const wire::Sampling& sampling) const {
    return max_length + (sampling.embeds != 0 ? 1 : 0);
  }
  /// KV blocks that hold so many positions.
  std::int32_t blocks_for(std::int32_t positions) const {
    return (positions + block_tokens - 1) / block_tokens;
  }
  /// True for a prompt with so many tokens left: few of these are computed at once, and short ones come
  /// before them.
  bool is_long(std::int32_t tokens) const { return tokens > long_prompt; }

  std::int32_t step_tokens = 0;          ///< budget of a step
  std::int32_t least_prompt_tokens = 0;  ///< of these, that prompts may take while others decode, and
  double least_prompt_share = 0;         ///< likewise of the time that decodes leave of a step's limit
  std::int32_t slots = 0;                ///< sequences at once; no more than step_tokens
  std::int32_t background_slots = 0;     ///< of these, that requests of batches may hold
  std::int32_t steps_in_flight = 1;
  std::int32_t max_length = 0;   ///< tokens of a sequence
  std::int32_t long_prompt = 0;  ///< a prompt with more tokens left is long
  std::int32_t block_tokens = 1;
  std::int32_t total_blocks = 0;
  std::int32_t prompt_blocks = 0;  ///< of these, for prompts, when blocks are reserved
  std::int32_t vocab_size = 0;
  std::int32_t max_logprobs = 0;
  bool swaps = false;                    ///< there is a swap space
  std::int32_t max_drafts = 0;           ///< draft tokens that a row may verify; 0: the worker makes none
  std::int32_t max_proposed = 0;         ///< with max_drafts: of a sequence with a form; 0: it has none
  std::int32_t max_sampled = INT32_MAX;  ///< tokens that the rows of a step may yield together
  std::int32_t frame_patches = 0;        ///< of an image, or of a video's frame
  std::int32_t embedding_width = 0;      ///< numbers of an embedding; 0: the worker offers none
  std::int32_t media_tokens = 0;         ///< of encoded images and videos at once; 0: the model sees nothing
};

}  // namespace troupe
