// Pictures through the readers of their headers and through their decoders: any bytes are refused with a
// reason, or become the pixels that the header promised. And what a process that decodes may say.
#include "fuzz/target.h"
#include "media/decode/decode.h"
#include "media/messages.h"
#include "media/prepare.h"
#include "media/resize/patches.h"

namespace troupe::media {
namespace {

/// Decoding a large picture takes longer than a fuzzer waits.
constexpr std::int64_t kMostPixels = 256 * 256;

FUZZ_TARGET(picture) {
  const PictureBounds bounds{.pixels = kMostPixels};
  const auto header = read_picture_header(input, bounds);
  if (!header.ok()) {
    const Status& refusal = header.status();
    fuzz::require(refusal.code == Code::invalid_argument, "a refusal is the client's fault");
    fuzz::require(refusal.reason == "invalid_image" || refusal.reason == "unsupported_image" ||
                      refusal.reason == "image_too_large",
                  "a refusal has a reason");
    return;
  }
  fuzz::require(header->width >= 1 && header->height >= 1, "a picture has pixels");
  fuzz::require(std::int64_t{header->width} * header->height <= kMostPixels, "a picture is within its bound");
  fuzz::require(header->orientation >= 1 && header->orientation <= 8, "an orientation is one of eight");
  const PixelLimits limits{.max_pixels = 64 * 784};
  const auto grid = grid_of(header->shown_width(), header->shown_height(), limits);
  if (!grid.ok()) return;
  std::vector<std::uint8_t> patches(patches_bytes(*grid));
  const auto prepared = prepare_picture(input, bounds, limits, patches);
  fuzz::require(!prepared.ok() || *prepared == *grid, "a picture becomes what its header says");
  const Status status =
      status_of(reply_of(1, prepared.status())).value_or(failure(Code::internal, "no reply"));
  fuzz::require(status.code == prepared.status().code, "every outcome can be told");
}

FUZZ_TARGET(media_reply) {
  MediaReply reply;
  std::memcpy(&reply, input.data(), std::min(input.size(), sizeof reply));
  const auto status = status_of(reply);
  if (!status) return;
  fuzz::require(status->ok() == status->message.empty(), "a failure says why");
  fuzz::require(status->message.size() < sizeof reply.message, "a message ends");
  for (const char c : status->message)
    fuzz::require(static_cast<unsigned char>(c) >= 0x20, "a message is one line");
}

}  // namespace
}  // namespace troupe::media
