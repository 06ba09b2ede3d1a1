#include "media/decode/decode.h"

#include <new>
#include <string>
#include <utility>

#include "media/decode/composite.h"

namespace troupe::media {
namespace {

Result<Picture> decode_kind(Bytes file, const PictureHeader& header) {
  switch (header.kind) {
    case PictureKind::jpeg: return decode_jpeg(file, header);
    case PictureKind::png: return decode_png(file, header);
    case PictureKind::webp: return decode_webp(file, header);
    case PictureKind::gif: return decode_gif(file, header);
  }
  return invalid_image("is no picture");
}

}  // namespace

Status damaged_picture(PictureKind kind, const char* why) {
  return invalid_image("is a " + std::string(to_string(kind)) + " picture that cannot be decoded: " + why);
}

Result<Picture> decode(Bytes file, const PictureHeader& header) {
  try {
    auto picture = decode_kind(file, header);
    if (!picture.ok()) return picture.status();
    return oriented(*std::move(picture), header.orientation);
  } catch (const std::bad_alloc&) {
    return failure(Code::unavailable, "is a picture of " + std::to_string(header.width) + " x " +
                                          std::to_string(header.height) +
                                          " pixels, for which memory does not suffice; try again later");
  }
}

}  // namespace troupe::media
