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

std::vector<BlockHash> names_of_prompt(const BlockHasher& hasher, std::string_view salt,
                                       std::span<const TokenId> prompt, std::span<const SequenceItem> media,
                                       std::int32_t block_tokens) {
  const auto length = static_cast<std::size_t>(block_tokens);
  std::vector<BlockHash> names, items;
  BlockHash last = hasher.root(salt);
  for (std::size_t end = length; end < prompt.size(); end += length) {
    media_in_block(media, static_cast<std::int32_t>(end - length), block_tokens, items);
    last = hasher.next(last, prompt.subspan(end - length, length), items);
    names.push_back(last);
  }
  return names;
}

}  // namespace troupe
