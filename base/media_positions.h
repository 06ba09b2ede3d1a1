#pragma once
// Positions of a sequence with images and videos: where each token stands in time, row and column. A pure
// function of where the items are and of their grids, for everyone who plans, names or runs such tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/patch_grid.h"

namespace troupe {

/// An image or a video in a sequence: its visual tokens, without the boundary tokens around them, have the
/// indices [first, end()).
struct MediaItem {
  MediaKind kind = MediaKind::image;
  PatchGrid grid{};
  std::int32_t first = 0;

  [[nodiscard]] std::int32_t end() const noexcept { return static_cast<std::int32_t>(first + grid.tokens()); }
  friend bool operator==(const MediaItem&, const MediaItem&) = default;
};

/// What the rotary embedding turns by. Of a text token all three are equal.
struct TokenPosition {
  std::int32_t time = 0;
  std::int32_t row = 0;
  std::int32_t column = 0;
  friend bool operator==(const TokenPosition&, const TokenPosition&) = default;
};

/// A counter p starts at 0. A text or boundary token is at (p, p, p), and p rises by one. The token of an
/// item at step a, row b and column c is at (p + a, p + b, p + c), and p becomes the largest coordinate of
/// the item plus one. Behind the last item a token's position is its index plus shift().
class MediaPositions {
 public:
  MediaPositions() = default;
  /// Items in the order of their tokens; they do not overlap, and each has at least one token.
  explicit MediaPositions(std::span<const MediaItem> items) {
    std::int32_t shift = 0;
    for (const MediaItem& item : items) {
      const PatchGrid& grid = item.grid;
      const std::int32_t steps = std::max({grid.token_frames(), grid.token_rows(), grid.token_columns()});
      starts_.push_back({item, item.first + shift});
      shift += steps - static_cast<std::int32_t>(grid.tokens());
    }
    shift_ = shift;
  }

  [[nodiscard]] TokenPosition at(std::int32_t index) const {
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
    const std::int32_t next = after == starts_.end() ? shift_ : after->position - after->item.first;
    return {index + next, index + next, index + next};
  }

  /// From the index of a token behind the last item to its position; never above 0.
  [[nodiscard]] std::int32_t shift() const noexcept { return shift_; }
  [[nodiscard]] bool empty() const noexcept { return starts_.empty(); }

 private:
  struct Start {
    MediaItem item{};
    std::int32_t position = 0;  // p before the item
  };
  std::vector<Start> starts_;
  std::int32_t shift_ = 0;
};

}  // namespace troupe
