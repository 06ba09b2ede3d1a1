#pragma once
// What images and videos add to the names of KV blocks.
#include <cstdint>
#include <span>
#include <vector>

#include "actors/messages.h"

namespace troupe {

/// What BlockHasher::next() is given beside the ids [first, first + tokens) of a prompt with these items: of
/// each that overlaps them, what it contains and where it begins, counted from `first`. All tokens of items
/// have the same id, so without the first part different images would have one name; without the second, two
/// prompts could that differ in which of these ids belong to which item, if some belong to none.
/// `out` is cleared first. Items are in order.
void media_in_block(std::span<const SequenceItem> items, std::int32_t first, std::int32_t tokens,
                    std::vector<BlockHash>& out);

}  // namespace troupe
