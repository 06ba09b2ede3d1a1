#pragma once
// What a client is told whose prompt does not fit the model.
#include <cstdint>
#include <string>

#include "base/status.h"

namespace troupe {

/// A prompt and its room, in tokens.
struct PromptLength {
  std::int64_t most = 0;  ///< that the model takes in all
  std::int64_t text = 0;
  std::int64_t media = 0;   ///< of images and videos
  std::int64_t output = 0;  ///< the least that the request wants; 0: that is not known or there is none
};

/// The refusal (`context_length_exceeded`): what there is, what is allowed and what to do about it.
Status context_exceeded(const PromptLength& length, std::string field);

}  // namespace troupe
