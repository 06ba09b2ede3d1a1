#pragma once
// Positions of a sequence with images and videos: where each token stands in time, row and column. A pure
// function of where the items are and of their grids, for everyone who plans, names or runs such tokens.
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/patch_grid.h"
#include "base/status.h"

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
  explicit MediaPositions(std::span<const MediaItem> items);

  [[nodiscard]] TokenPosition at(std::int32_t index) const;

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

/// What a prompt's placeholders stand for, before it is known where they are.
struct MediaGrid {
  MediaKind kind = MediaKind::image;
  PatchGrid grid{};
};

/// Where the items of a prompt are: its runs of `placeholder` are, in order, the tokens of `grids`; items may
/// follow each other without a token between. invalid_argument if the numbers differ.
Result<std::vector<MediaItem>> locate_media(std::span<const TokenId> ids, TokenId placeholder,
                                            std::span<const MediaGrid> grids);

}  // namespace troupe
