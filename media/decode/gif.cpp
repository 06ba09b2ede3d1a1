// GIF by giflib, the first frame.
#include <gif_lib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "media/decode/decode.h"

namespace troupe::media {
namespace {

using Colour = std::array<std::uint8_t, kPixelBytes>;
constexpr Colour kWhite{255, 255, 255, 255};

struct Close {
  void operator()(GifFileType* gif) const { DGifCloseFile(gif, nullptr); }
};

int read(GifFileType* gif, GifByteType* to, int size) {
  auto& rest = *static_cast<Bytes*>(gif->UserData);
  const std::size_t count = std::min(rest.size(), static_cast<std::size_t>(std::max(size, 0)));
  std::memcpy(to, rest.data(), count);
  rest = rest.subspan(count);
  return static_cast<int>(count);
}

/// Reads up to the first frame; `transparent` gets the index that an extension names.
bool find_frame(GifFileType* gif, int& transparent) {
  for (;;) {
    GifRecordType type;
    if (DGifGetRecordType(gif, &type) == GIF_ERROR) return false;
    if (type == IMAGE_DESC_RECORD_TYPE) return DGifGetImageDesc(gif) != GIF_ERROR;
    if (type != EXTENSION_RECORD_TYPE) return false;
    int code = 0;
    GifByteType* block = nullptr;
    if (DGifGetExtension(gif, &code, &block) == GIF_ERROR) return false;
    while (block != nullptr) {
      GraphicsControlBlock control;
      if (code == GRAPHICS_EXT_FUNC_CODE && DGifExtensionToGCB(block[0], block + 1, &control) != GIF_ERROR &&
          control.TransparentColor != NO_TRANSPARENT_COLOR)
        transparent = control.TransparentColor;
      if (DGifGetExtensionNext(gif, &block) == GIF_ERROR) return false;
    }
  }
}

/// What each index looks like. Without a palette an index is a grey; behind the end of one it is black.
std::array<Colour, 256> colours_of(const ColorMapObject* map, int transparent) {
  std::array<Colour, 256> out{};
  for (int i = 0; i < 256; ++i) {
    Colour& colour = out[static_cast<std::size_t>(i)];
    const auto grey = static_cast<std::uint8_t>(i);
    if (map == nullptr) colour = {grey, grey, grey, 255};
    if (map != nullptr && i < map->ColorCount)
      colour = {map->Colors[i].Red, map->Colors[i].Green, map->Colors[i].Blue, 255};
    if (i == transparent) colour = kWhite;
  }
  return out;
}

/// The rows of a frame in the order in which the file has them.
std::vector<int> rows_in_order(int height, bool interlaced) {
  std::vector<int> rows;
  constexpr int kPasses[4][2] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
  for (const auto& [first, step] : kPasses)
    for (int y = first; interlaced && y < height; y += step) rows.push_back(y);
  for (int y = 0; !interlaced && y < height; ++y) rows.push_back(y);
  return rows;
}

}  // namespace

Result<Picture> decode_gif(Bytes file, const PictureHeader& header) {
  Bytes rest = file;
  int error = 0;
  const auto damaged = [&](int code) {
    const char* why = GifErrorString(code);
    return damaged_picture(header.kind, why != nullptr ? why : "it is damaged or cut");
  };
  const std::unique_ptr<GifFileType, Close> gif(DGifOpen(&rest, read, &error));
  if (gif == nullptr) return damaged(error);
  int transparent = NO_TRANSPARENT_COLOR;
  if (!find_frame(gif.get(), transparent)) return damaged(gif->Error);
  const GifImageDesc& frame = gif->Image;
  if (frame.Left < 0 || frame.Top < 0 || frame.Width < 1 || frame.Height < 1 ||
      frame.Left + frame.Width > header.width || frame.Top + frame.Height > header.height)
    return damaged_picture(header.kind, "it states two sizes");
  const auto colours = colours_of(frame.ColorMap != nullptr ? frame.ColorMap : gif->SColorMap, transparent);
  Picture out(header.width, header.height);
  if (frame.Width < header.width || frame.Height < header.height) {
    const Colour around = transparent != NO_TRANSPARENT_COLOR ? kWhite : colours[0];
    for (std::size_t at = 0; at < out.bytes(); at += kPixelBytes)
      std::memcpy(out.row(0) + at, around.data(), kPixelBytes);
  }
  std::vector<GifPixelType> indices(static_cast<std::size_t>(frame.Width));
  for (const int y : rows_in_order(frame.Height, frame.Interlace)) {
    if (DGifGetLine(gif.get(), indices.data(), frame.Width) == GIF_ERROR) return damaged(gif->Error);
    std::uint8_t* to = out.row(frame.Top + y) + static_cast<std::size_t>(frame.Left) * kPixelBytes;
    for (const GifPixelType index : indices) {
      std::memcpy(to, colours[index].data(), kPixelBytes);
      to += kPixelBytes;
    }
  }
  return out;
}

}  // namespace troupe::media
