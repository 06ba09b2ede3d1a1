#include "actors/scheduler/media_rules.h"

#include <algorithm>
#include <string>

#include "actors/scheduler/media_work.h"
#include "base/counted.h"

namespace troupe {
namespace {

Status wrong(std::size_t index, const std::string& what, const std::string& reason = {}) {
  return invalid("Image or video " + std::to_string(index) + " of the prompt " + what, "messages", reason);
}

}  // namespace

Status check_media(const SequenceSpec& spec, const WorkerLimits& worker) {
  if (spec.media.empty()) return {};
  if (spec.parent != RequestKey{}) {
    return invalid("A choice has images or videos of its own; they are those of its parent.", "media");
  }
  if (worker.media_tokens == 0) {
    return invalid("The model takes no images or videos.", "messages", "unsupported_image");
  }
  if (spec.media.size() > MediaWork::kMostItems) {
    return invalid("The prompt has " + std::to_string(spec.media.size()) + " images and videos; at most " +
                       std::to_string(MediaWork::kMostItems) + " are taken.",
                   "messages", "too_many_items");
  }
  std::int64_t end = 0;
  for (std::size_t i = 0; i < spec.media.size(); ++i) {
    const MediaItem& item = spec.media[i].item;
    if (!can_be(item.kind, item.grid, worker.frame_patches)) {
      return wrong(i, "has " + std::to_string(item.grid.frames) + " × " + std::to_string(item.grid.rows) +
                          " × " + std::to_string(item.grid.columns) + " patches, which cannot be.");
    }
    const std::int64_t tokens = item.grid.tokens();
    if (tokens > worker.media_tokens) {
      return wrong(i,
                   "has " + counted(tokens, "token") + "; at most " + std::to_string(worker.media_tokens) +
                       " can be encoded (--max-model-len).",
                   "image_too_large");
    }
    if (item.first < end || item.first + tokens >= spec.prompt_tokens) {
      return wrong(i, "has the tokens from " + std::to_string(item.first) + " to " +
                          std::to_string(item.first + tokens) + "; they must lie behind " +
                          std::to_string(end) + " and before the last of " +
                          std::to_string(spec.prompt_tokens) + ".");
    }
    end = item.first + tokens;
    const auto ids = std::span(spec.prompt)
                         .subspan(static_cast<std::size_t>(item.first), static_cast<std::size_t>(tokens));
    if (std::ranges::any_of(ids, [&](TokenId id) { return id != ids.front(); })) {
      return wrong(i, "does not stand on equal tokens.");
    }
    if (spec.media[i].place.generation == 0) {  // of a front on another machine
      return {
          Code::overloaded,
          "Image or video " + std::to_string(i) +
              " of the prompt found no room in the engine's memory for images (--media-memory); try again "
              "later.",
          "messages", "media_memory_full"};
    }
  }
  return {};
}

bool media_fit(std::span<const SequenceItem> items, const WorkerLimits& worker) {
  return std::ranges::all_of(
      items, [&](const SequenceItem& item) { return item.item.grid.tokens() <= worker.media_tokens; });
}

}  // namespace troupe
