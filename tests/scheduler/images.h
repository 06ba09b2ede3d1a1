#pragma once
// Random images in random prompts.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "actors/messages.h"

namespace troupe::test {

/// One of 1, 4 or 5 tokens, by its contents.
inline SequenceItem image_of(std::int32_t first, std::uint64_t contents) {
  constexpr PatchGrid kGrids[] = {{1, 2, 2}, {1, 4, 4}, {1, 2, 10}};
  return {{MediaKind::image, kGrids[contents % 3], first}, {9, contents}, {4096 * contents, contents}};
}

/// The images of an earlier text with which the prompt begins. One that is cut off leaves ids that are no
/// item's; some have gone, and some have become others.
template <class Dice>
void repeat_images(Dice& dice, const std::vector<SequenceItem>& images, std::int32_t prompt_tokens,
                   SequenceSpec& spec) {
  for (const SequenceItem& image : images) {
    if (image.item.end() >= prompt_tokens || dice.chance(0.05)) continue;
    spec.media.push_back(image);
    if (dice.chance(0.1)) spec.media.back() = image_of(image.item.first, image.contents.lo + 3);
  }
}

/// Further ones, from the id at `begin` on.
template <class Dice>
void add_images(Dice& dice, std::int32_t begin, SequenceSpec& spec) {
  if (dice.chance(0.4)) return;
  const auto end = static_cast<std::int32_t>(spec.prompt.size());
  if (!spec.media.empty()) begin = std::max(begin, spec.media.back().item.end());
  while (dice.chance(0.7)) {
    const SequenceItem image = image_of(begin + dice.below(8), 3 + static_cast<std::uint64_t>(dice.below(9)));
    begin = image.item.end();
    if (begin >= end) return;
    for (std::int32_t i = image.item.first; i < begin; ++i) spec.prompt[static_cast<std::size_t>(i)] = 1;
    spec.media.push_back(image);
  }
}

}  // namespace troupe::test
