#pragma once
// The time that is drawn into each frame of a video before it is resized: all that tells the model when a
// frame is. Drawn as Pillow does it for Baidu's processor: Roboto, a tenth of the shorter side high, black on
// a white stroke, from the upper left corner. Rasterisers and versions of the font differ, so its bits do
// too.
#include <memory>
#include <string>

#include "base/status.h"
#include "media/picture.h"

namespace troupe::media {

/// Not thread-safe.
class Stamp {
 public:
  /// Reads the font. unsupported, with a sentence that names the package, when it is not installed.
  static Result<Stamp> open(const std::string& font);

  Stamp(Stamp&&) noexcept;
  Stamp& operator=(Stamp&&) noexcept;
  ~Stamp();

  /// Opens no file. Nothing is drawn into a picture with a side below 10 pixels. What does not fit is cut
  /// off. False when the font cannot be drawn; throws std::bad_alloc.
  bool draw(Picture& picture, const std::string& text);

 private:
  struct Font;
  explicit Stamp(std::unique_ptr<Font> font);
  std::unique_ptr<Font> font_;
};

/// Where Debian's package fonts-roboto-unhinted puts it.
inline constexpr const char* kStampFont =
    "/usr/share/fonts/truetype/roboto/unhinted/RobotoTTF/Roboto-Regular.ttf";

}  // namespace troupe::media
