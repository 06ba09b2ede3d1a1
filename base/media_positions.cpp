#include "base/media_positions.h"

#include <algorithm>
#include <string>

namespace troupe {

MediaPositions::MediaPositions(std::span<const MediaItem> items) {
  for (const MediaItem& item : items) {
    const PatchGrid& grid = item.grid;
    const std::int32_t steps = std::max({grid.token_frames(), grid.token_rows(), grid.token_columns()});
    starts_.push_back({item, item.first + shift_});
    shift_ += steps - static_cast<std::int32_t>(grid.tokens());
  }
}

TokenPosition MediaPositions::at(std::int32_t index) const {
  const auto after =
      std::upper_bound(starts_.begin(), starts_.end(), index,
                       [](std::int32_t at, const Start& start) { return at < start.item.first; });
  if (after == starts_.begin()) return {index, index, index};
  const Start& start = *(after - 1);
  const PatchGrid& grid = start.item.grid;
  if (index < start.item.end()) {
    const std::int32_t inner = index - start.item.first, columns = grid.token_columns();
    const std::int32_t frame = columns * grid.token_rows();
    return {start.position + inner / frame, start.position + inner % frame / columns,
            start.position + inner % columns};
  }
  const std::int32_t shift = after == starts_.end() ? shift_ : after->position - after->item.first;
  return {index + shift, index + shift, index + shift};
}

Result<std::vector<MediaItem>> locate_media(std::span<const TokenId> ids, TokenId placeholder,
                                            std::span<const MediaGrid> grids) {
  std::vector<MediaItem> items;
  std::size_t at = 0;
  for (const MediaGrid& wanted : grids) {
    while (at < ids.size() && ids[at] != placeholder) ++at;
    std::size_t end = at;
    const auto tokens = static_cast<std::size_t>(wanted.grid.tokens());
    while (end < ids.size() && end - at < tokens && ids[end] == placeholder) ++end;
    if (end - at != tokens || tokens == 0) {
      return invalid("Item " + std::to_string(items.size()) + " of the prompt has " + std::to_string(tokens) +
                     " tokens, and there are " + std::to_string(end - at) + " placeholders for it.");
    }
    items.push_back({wanted.kind, wanted.grid, static_cast<std::int32_t>(at)});
    at = end;
  }
  const auto left = std::count(ids.begin() + static_cast<std::ptrdiff_t>(at), ids.end(), placeholder);
  if (left > 0) {
    return invalid("The prompt has " + std::to_string(left) + " placeholders more than the tokens of its " +
                   std::to_string(items.size()) + " items.");
  }
  return items;
}

}  // namespace troupe
