#pragma once
// What the flags of images and videos mean, and what a request may change of it.
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/patch_grid.h"
#include "base/status.h"
#include "base/video_sampling.h"
#include "config/options.h"

namespace troupe::config {

/// How large pictures become, and which frames are taken of a video.
struct MediaSizes {
  PixelLimits image;
  PixelLimits video = kVideoPixels;  ///< of each frame
  VideoSampling sampling;
};

struct MediaRules {
  int max_images = 1;  ///< of one request
  int max_videos = 1;
  MediaSizes sizes;
};

inline constexpr std::int64_t kMostPixels = 2'147'483'647;
inline constexpr std::int32_t kMostFrames = 1024;  ///< that may be asked for of one video

/// Of options that parse() has accepted.
MediaRules media_rules(const MediaOptions& options);

/// Changes what the members of --mm-processor-kwargs, or of a request's mm_processor_kwargs, name. Those that
/// are unknown are added to `unknown`. A failure names the member as its param, and its message begins with
/// it.
Status read_media_sizes(const Json& members, MediaSizes& sizes, std::vector<std::string>& unknown);

/// Changes what the members fps, min_frames, max_frames, target_frames and frames_sample of a part name.
/// A failure is as that of read_media_sizes().
Status read_video_sampling(const Json& part, VideoSampling& sampling);

/// Warns of the members of --mm-processor-kwargs that are unknown; empty: there are none.
std::string unknown_media_sizes(std::string_view text);

}  // namespace troupe::config
