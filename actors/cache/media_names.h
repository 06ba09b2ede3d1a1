#pragma once
// The names of a prompt's KV blocks, and what images and videos add to them.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "actors/cache/block_hash.h"
#include "actors/messages.h"

namespace troupe {

/// What BlockHasher::next() is given beside the ids [first, first + tokens) of a prompt with these items: of
/// each that overlaps them, what it contains and where it begins, counted from `first`. All tokens of items
/// have the same id, so without the first part different images would have one name; without the second, two
/// prompts could that differ in which of these ids belong to which item, if some belong to none.
/// `out` is cleared first. Items are in order.
void media_in_block(std::span<const SequenceItem> items, std::int32_t first, std::int32_t tokens,
                    std::vector<BlockHash>& out);

/// The names of the blocks of a prompt that are full before its last token, which is always computed. `salt`
/// as BlockHasher::root() takes it.
std::vector<BlockHash> names_of_prompt(const BlockHasher& hasher, std::string_view salt,
                                       std::span<const TokenId> prompt, std::span<const SequenceItem> media,
                                       std::int32_t block_tokens);

}  // namespace troupe
