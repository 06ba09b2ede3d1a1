#pragma once
// The numbers of draft tokens among which plans choose, and for which a GPU prepares steps.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace troupe {

/// Most draft tokens of a row.
inline constexpr std::int32_t kMostDrafts = 8;

/// None, about a third of `most`, and `most`; ascending, each once.
inline std::vector<std::int32_t> draft_choices(std::int32_t most) {
  std::vector<std::int32_t> choices{0, (most + 2) / 3, most};
  choices.erase(std::unique(choices.begin(), choices.end()), choices.end());
  return choices;
}

}  // namespace troupe
