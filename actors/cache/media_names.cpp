#include "actors/cache/media_names.h"

#include <algorithm>

namespace troupe {

void media_in_block(std::span<const SequenceItem> items, std::int32_t first, std::int32_t tokens,
                    std::vector<BlockHash>& out) {
  out.clear();
  const auto ends_by = [](const SequenceItem& item, std::int32_t at) { return item.item.end() <= at; };
  auto item = std::lower_bound(items.begin(), items.end(), first, ends_by);
  for (; item != items.end() && item->item.first < first + tokens; ++item) {
    out.push_back(item->contents);
    out.push_back({static_cast<std::uint64_t>(std::int64_t{item->item.first} - first), 0});
  }
}

}  // namespace troupe
