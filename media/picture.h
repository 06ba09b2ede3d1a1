#pragma once
// Decoded pixels.
#include <cstddef>
#include <cstdint>
#include <memory>

namespace troupe::media {

inline constexpr int kPixelBytes = 4;  ///< red, green, blue, and one that means nothing unless said
/// Readable bytes behind the last pixel, whose contents do not count: resizing reads whole vectors.
inline constexpr std::size_t kReadableBehind = 64;

/// Rows from top to bottom without gaps. Its memory is not cleared when it is made.
class Picture {
 public:
  Picture() = default;
  /// Throws std::bad_alloc.
  Picture(int width, int height)
      : width_(width),
        height_(height),
        pixels_(std::make_unique_for_overwrite<std::uint8_t[]>(bytes() + kReadableBehind)) {}

  int width() const { return width_; }
  int height() const { return height_; }
  std::size_t row_bytes() const { return static_cast<std::size_t>(width_) * kPixelBytes; }
  std::size_t bytes() const { return row_bytes() * static_cast<std::size_t>(height_); }

  std::uint8_t* row(int y) { return pixels_.get() + static_cast<std::size_t>(y) * row_bytes(); }
  const std::uint8_t* row(int y) const { return pixels_.get() + static_cast<std::size_t>(y) * row_bytes(); }

 private:
  int width_ = 0;
  int height_ = 0;
  std::unique_ptr<std::uint8_t[]> pixels_;
};

}  // namespace troupe::media
