#include "media/video/stamp.h"

#include <ft2build.h>
#include FT_FREETYPE_H
#include FT_GLYPH_H
#include FT_STROKER_H

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

namespace troupe::media {
namespace {

struct Close {
  void operator()(FT_Library library) const { FT_Done_FreeType(library); }
  void operator()(FT_Face face) const { FT_Done_Face(face); }
  void operator()(FT_Stroker stroker) const { FT_Stroker_Done(stroker); }
  void operator()(FT_Glyph glyph) const { FT_Done_Glyph(glyph); }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Close>;

/// Lays a colour over the picture, as opaque as `bitmap` says.
void paint(Picture& picture, const FT_Bitmap& bitmap, int left, int top, int colour) {
  const int columns = static_cast<int>(bitmap.width), rows = static_cast<int>(bitmap.rows);
  for (int y = std::max(0, -top); y < std::min(rows, picture.height() - top); ++y) {
    const std::uint8_t* mask = bitmap.buffer + static_cast<std::ptrdiff_t>(y) * bitmap.pitch;
    std::uint8_t* row = picture.row(top + y);
    for (int x = std::max(0, -left); x < std::min(columns, picture.width() - left); ++x) {
      std::uint8_t* pixel = row + static_cast<std::size_t>(left + x) * kPixelBytes;
      for (int c = 0; c < 3; ++c) {
        const int mixed = pixel[c] * (255 - mask[x]) + colour * mask[x] + 128;
        pixel[c] = static_cast<std::uint8_t>((mixed + (mixed >> 8)) >> 8);
      }
    }
  }
}

}  // namespace

struct Stamp::Font {
  std::vector<char> bytes;
  Owned<FT_Library> library;
  Owned<FT_Face> face;
  Owned<FT_Stroker> stroker;

  /// Draws each character, its outline wider by `stroke` pixels where that is above 0.
  bool draw(Picture& picture, const std::string& text, int stroke, int colour) {
    const FT_Pos ascender = face->size->metrics.ascender >> 6;
    FT_Pos pen = 0;  // 1/64 pixel
    for (const char character : text) {
      if (FT_Load_Char(face.get(), static_cast<unsigned char>(character), FT_LOAD_NO_BITMAP) != 0)
        return false;
      FT_Glyph made = nullptr;
      if (FT_Get_Glyph(face->glyph, &made) != 0) return false;
      if (stroke > 0) {
        FT_Stroker_Set(stroker.get(), stroke * 64, FT_STROKER_LINECAP_ROUND, FT_STROKER_LINEJOIN_ROUND, 0);
        if (FT_Glyph_Stroke(&made, stroker.get(), 1) != 0) return false;
      }
      if (FT_Glyph_To_Bitmap(&made, FT_RENDER_MODE_NORMAL, nullptr, 1) != 0) {
        FT_Done_Glyph(made);
        return false;
      }
      const Owned<FT_Glyph> glyph(made);
      const auto* drawn = reinterpret_cast<FT_BitmapGlyph>(glyph.get());
      paint(picture, drawn->bitmap, static_cast<int>((pen + 32) >> 6) + drawn->left,
            static_cast<int>(ascender) - drawn->top, colour);
      pen += face->glyph->advance.x;
    }
    return true;
  }
};

Stamp::Stamp(std::unique_ptr<Font> font) : font_(std::move(font)) {}
Stamp::Stamp(Stamp&&) noexcept = default;
Stamp& Stamp::operator=(Stamp&&) noexcept = default;
Stamp::~Stamp() = default;

Result<Stamp> Stamp::open(const std::string& path) {
  const Status missing =
      failure(Code::unsupported,
              "needs the font Roboto for the times of its frames: install the package fonts-roboto-unhinted");
  auto font = std::make_unique<Font>();
  std::ifstream file(path, std::ios::binary);
  font->bytes.assign(std::istreambuf_iterator<char>(file), {});
  FT_Library library = nullptr;
  if (font->bytes.empty() || FT_Init_FreeType(&library) != 0) return missing;
  font->library.reset(library);
  FT_Face face = nullptr;
  if (FT_New_Memory_Face(library, reinterpret_cast<const FT_Byte*>(font->bytes.data()),
                         static_cast<FT_Long>(font->bytes.size()), 0, &face) != 0)
    return missing;
  font->face.reset(face);
  FT_Stroker stroker = nullptr;
  if (FT_Stroker_New(library, &stroker) != 0) return missing;
  font->stroker.reset(stroker);
  return Stamp(std::move(font));
}

bool Stamp::draw(Picture& picture, const std::string& text) {
  const int size = std::min(picture.width(), picture.height()) / 10, stroke = size / 10;
  if (size == 0) return true;
  if (FT_Set_Pixel_Sizes(font_->face.get(), 0, static_cast<FT_UInt>(size)) != 0) return false;
  if (stroke > 0 && !font_->draw(picture, text, stroke, 255)) return false;
  return font_->draw(picture, text, 0, 0);
}

}  // namespace troupe::media
