#include "actors/tokenizer/prompt_length.h"

#include <utility>

namespace troupe {

Status context_exceeded(const PromptLength& length, std::string field) {
  // Clients know this error by its first words, which are those of OpenAI's API.
  std::string message = "This model's maximum context length is " + std::to_string(length.most) +
                        " tokens. However, the prompt has " + std::to_string(length.text + length.media);
  if (length.media > 0) {
    message += " (" + std::to_string(length.text) + " of text and " + std::to_string(length.media) +
               " of images and videos)";
  }
  if (length.output > 0) message += " and at least " + std::to_string(length.output) + " more are asked for";
  message += length.media == 0
                 ? ": shorten the prompt"
                 : ": send fewer images and videos, smaller ones (detail \"low\", or image_max_pixels, "
                   "video_max_pixels and video_max_frames in mm_processor_kwargs), or less text";
  return invalid(std::move(message), std::move(field), "context_length_exceeded");
}

}  // namespace troupe
