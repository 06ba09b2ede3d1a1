#pragma once
// Where a rendered prompt says that an image or a video belongs.
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/patch_grid.h"
#include "text/text_span.h"

namespace troupe {

/// A mark: bytes of a span that stand for all tokens of an item.
struct MediaMark {
  std::size_t span = 0;
  std::size_t begin = 0;
  std::size_t end = 0;  ///< of the mark, within the span's text
  MediaKind kind = MediaKind::image;
};

/// The texts that ERNIE's templates write for an item: <|image@placeholder|>, <|IMAGE_PLACEHOLDER|>,
/// <|video@placeholder|>, <|VIDEO_PLACEHOLDER|>, and what the vocabulary prints for the placeholders' ids.
class MediaMarks {
 public:
  /// Texts of the vocabulary; those that are empty do not count.
  explicit MediaMarks(std::string image = {}, std::string video = {});

  /// The marks in text that the template itself has written, in order. What a client wrote has none.
  [[nodiscard]] std::vector<MediaMark> find(std::span<const TextSpan> spans) const;

 private:
  std::vector<std::pair<std::string, MediaKind>> texts_;
};

}  // namespace troupe
