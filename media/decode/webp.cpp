// WebP by libwebp, of an animation the first frame on its canvas.
#include <webp/demux.h>

#include <cstring>
#include <memory>

#include "media/decode/composite.h"
#include "media/decode/decode.h"

namespace troupe::media {
namespace {

struct Delete {
  void operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }
};

}  // namespace

Result<Picture> decode_webp(Bytes file, const PictureHeader& header) {
  const WebPData data{file.data(), file.size()};
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0)
    return damaged_picture(header.kind, "the library is another one");
  options.color_mode = MODE_RGBA;
  options.use_threads = 0;
  const std::unique_ptr<WebPAnimDecoder, Delete> decoder(WebPAnimDecoderNew(&data, &options));
  if (decoder == nullptr) return damaged_picture(header.kind, "its structure is damaged or cut");
  WebPAnimInfo info;
  if (WebPAnimDecoderGetInfo(decoder.get(), &info) == 0 ||
      info.canvas_width != static_cast<unsigned>(header.width) ||
      info.canvas_height != static_cast<unsigned>(header.height))
    return damaged_picture(header.kind, "it states two sizes");
  std::uint8_t* frame = nullptr;
  int timestamp = 0;
  if (WebPAnimDecoderGetNext(decoder.get(), &frame, &timestamp) == 0)
    return damaged_picture(header.kind, "its pixels are damaged or cut");
  Picture out(header.width, header.height);
  std::memcpy(out.row(0), frame, out.bytes());
  lay_on_white(out);
  return out;
}

}  // namespace troupe::media
