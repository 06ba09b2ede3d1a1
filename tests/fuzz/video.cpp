// Videos through libav's containers and decoders as `troupe media` uses them: any bytes are refused with a
// reason, or become as many patches as the file's own facts promise.
#include <optional>
#include <string>
#include <vector>

#include "fuzz/target.h"
#include "media/messages.h"
#include "media/pixel_grid.h"
#include "media/prepare.h"
#include "media/resize/patches.h"
#include "media/video/decode_video.h"
#include "media/video/stamp.h"

namespace troupe::media {
namespace {

/// Of a frame, and frames: large ones take longer than a fuzzer waits.
constexpr std::int64_t kMostFramePixels = 256 * 256;
constexpr int kFrames = 4;

/// The font, once libav is open; none where a package of either is not installed.
Stamp* stamp() {
  static std::optional<Stamp> opened = []() -> std::optional<Stamp> {
    if (!open_video_libraries().ok()) return std::nullopt;
    auto font = Stamp::open(kStampFont);
    if (!font.ok()) return std::nullopt;
    return *std::move(font);
  }();
  return opened ? &*opened : nullptr;
}

void require_told(const Status& refusal) {
  const Status status = status_of(reply_of(1, refusal)).value_or(failure(Code::internal, "no reply"));
  fuzz::require(status.code == refusal.code, "every outcome can be told");
  if (refusal.ok() || refusal.code == Code::unavailable) return;  // of memory
  fuzz::require(refusal.code == Code::invalid_argument, "a refusal is the client's fault");
  fuzz::require(refusal.reason == "invalid_video" || refusal.reason == "unsupported_video" ||
                    refusal.reason == "image_too_large",
                "a refusal has a reason");
}

FUZZ_TARGET(video) {
  if (stamp() == nullptr) return;
  const PictureBounds bounds{.pixels = kMostFramePixels};
  const auto facts = probe_video(input, bounds);
  require_told(facts.status());
  if (!facts.ok()) return;
  fuzz::require(facts->width >= 1 && facts->height >= 1, "a frame has pixels");
  fuzz::require(std::int64_t{facts->width} * facts->height <= kMostFramePixels,
                "a frame is within its bound");
  fuzz::require(facts->frames >= 1 && facts->frames_per_second > 0, "a video has frames");
  VideoSampling sampling{.fps = -1, .target_frames = std::min(kFrames, facts->frames)};
  const PixelLimits limits{.max_pixels = 64 * 784};
  const auto frames = sampled_frames(*facts, sampling);
  if (!frames.ok()) return;
  const auto grid = video_grid(*facts, frames->size(), limits);
  if (!grid.ok()) return;
  std::vector<std::uint8_t> patches(patches_bytes(*grid));
  const auto prepared = prepare_video(input, bounds, limits, sampling, *stamp(), patches);
  require_told(prepared.status());
  fuzz::require(!prepared.ok() || *prepared == *grid, "a video becomes what its file says of it");
}

}  // namespace
}  // namespace troupe::media
