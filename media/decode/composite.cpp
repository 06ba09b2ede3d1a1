#include "media/decode/composite.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe::media {
namespace {

/// The pixel at (x, y) of the turned picture, as the place in a picture of `width` x `height`.
template <int Orientation>
constexpr std::size_t source_of(int x, int y, int width, int height) {
  int from_x = x, from_y = y;
  if constexpr (Orientation >= 5) std::swap(from_x, from_y);
  if constexpr (Orientation == 2 || Orientation == 3 || Orientation == 7 || Orientation == 8)
    from_x = width - 1 - from_x;
  if constexpr (Orientation == 3 || Orientation == 4 || Orientation == 6 || Orientation == 7)
    from_y = height - 1 - from_y;
  return (static_cast<std::size_t>(from_y) * static_cast<std::size_t>(width) +
          static_cast<std::size_t>(from_x)) *
         kPixelBytes;
}

/// In squares, so that neither reading nor writing leaves the cache for each pixel.
template <int Orientation>
Picture turned(const Picture& picture) {
  constexpr int kSquare = 32;
  const int width = picture.width(), height = picture.height();
  Picture out(Orientation >= 5 ? height : width, Orientation >= 5 ? width : height);
  for (int top = 0; top < out.height(); top += kSquare) {
    const int bottom = std::min(top + kSquare, out.height());
    for (int left = 0; left < out.width(); left += kSquare) {
      const int right = std::min(left + kSquare, out.width());
      for (int y = top; y < bottom; ++y)
        for (int x = left; x < right; ++x)
          std::memcpy(out.row(y) + static_cast<std::size_t>(x) * kPixelBytes,
                      picture.row(0) + source_of<Orientation>(x, y, width, height), kPixelBytes);
    }
  }
  return out;
}

}  // namespace

void lay_on_white(Picture& picture) {
  std::uint8_t* end = picture.row(0) + picture.bytes();
  for (std::uint8_t* pixel = picture.row(0); pixel != end; pixel += kPixelBytes) {
    const unsigned opacity = pixel[3];
    for (int i = 0; i < 3; ++i) {
      const unsigned sum = pixel[i] * opacity + 255 * (255 - opacity) + 128;
      pixel[i] = static_cast<std::uint8_t>(((sum >> 8) + sum) >> 8);
    }
  }
}

Picture oriented(Picture picture, int orientation) {
  switch (orientation) {
    case 2: return turned<2>(picture);
    case 3: return turned<3>(picture);
    case 4: return turned<4>(picture);
    case 5: return turned<5>(picture);
    case 6: return turned<6>(picture);
    case 7: return turned<7>(picture);
    case 8: return turned<8>(picture);
    default: return picture;
  }
}

}  // namespace troupe::media
