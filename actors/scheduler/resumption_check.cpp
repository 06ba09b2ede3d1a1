#include "actors/scheduler/resumption_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/counted.h"

namespace troupe {

Status check_resumption(const SequenceSpec& spec, std::uint32_t attempt, std::int32_t vocab_size,
                        std::int32_t max_length) {
  const auto outputs = static_cast<std::int64_t>(spec.output.size());
  if (attempt == 0 && outputs > 0) {
    return invalid("output has " + counted(outputs, "token") + "; at the first attempt it must be empty.",
                   "output");
  }
  const std::int32_t most_scored = attempt == 0 ? 0 : spec.prompt_tokens;
  if (spec.scored < 0 || spec.scored > most_scored) {
    return invalid("scored is " + std::to_string(spec.scored) + "; it must be at least 0 and at most " +
                       std::to_string(most_scored) +
                       (attempt == 0 ? " at the first attempt." : ", the length of the prompt."),
                   "scored", "out_of_range");
  }
  if (outputs >= spec.max_output_tokens) {
    return invalid("output has " + counted(outputs, "token") + ", but max_tokens is " +
                       std::to_string(spec.max_output_tokens) + ": the sequence has ended.",
                   "output", "out_of_range");
  }
  if (spec.prompt_tokens + outputs >= max_length) {
    return invalid("Prompt and output have " + counted(spec.prompt_tokens + outputs, "token") +
                       ", but a sequence has room for " + std::to_string(max_length) +
                       " and needs at least one more.",
                   "output", "context_length_exceeded");
  }
  std::vector<TokenId> stop_ids = spec.stop_ids;
  std::sort(stop_ids.begin(), stop_ids.end());
  for (const TokenId token : spec.output) {
    if (token < 0 || token >= vocab_size) {
      return invalid("output holds token " + std::to_string(token) + "; ids are 0 to " +
                         std::to_string(vocab_size - 1) + ".",
                     "output", "out_of_range");
    }
    if (std::binary_search(stop_ids.begin(), stop_ids.end(), token)) {
      return invalid("output holds token " + std::to_string(token) + ", a stop id: the sequence has ended.",
                     "output");
    }
  }
  return {};
}

}  // namespace troupe
