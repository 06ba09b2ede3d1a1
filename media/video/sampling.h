#pragma once
// Which frames of a video are shown to the model, and when each of them is, as FastDeploy chooses them.
#include <cstdint>
#include <string>
#include <vector>

#include "base/patch_grid.h"
#include "base/status.h"
#include "base/video_sampling.h"

namespace troupe::media {

/// What a video's file says of its pictures.
struct VideoFacts {
  std::int32_t width = 0;  ///< as shown
  std::int32_t height = 0;
  std::int32_t frames = 0;         ///< pictures in the file
  double frames_per_second = 0.0;  ///< on average; above 0

  double seconds() const { return frames / frames_per_second; }
};

/// Indices of the frames, ascending, one or more; an index may stand there twice. A rate of `sampling` is
/// kept where it yields at least min_frames and at most max_frames; else so many are spread evenly.
/// invalid_argument for no frames, and for a combination that FastDeploy refuses, too.
Result<std::vector<std::int32_t>> sampled_frames(const VideoFacts& facts, const VideoSampling& sampling);

/// When the frame is shown, in seconds from the first.
double time_of(std::int32_t frame, const VideoFacts& facts);

/// The grid of so many frames; an odd number is rounded up, as the last frame is shown twice then. Errors as
/// of grid_of().
Result<PatchGrid> video_grid(const VideoFacts& facts, std::size_t frames, const PixelLimits& limits);

/// Refusals of videos, with their reasons.
Status invalid_video(std::string message);
Status unsupported_video(std::string message);

/// "time: HH:MM:SS.ss"
std::string stamp_text(double seconds);

}  // namespace troupe::media
