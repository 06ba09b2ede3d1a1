#pragma once
// Which frames of a video the model sees.
#include <cstdint>

namespace troupe {

/// Which frame of each of `target_frames` equal spans is taken.
enum class FrameChoice : std::uint8_t { leading, middle };

/// With a negative `fps` it is target_frames of the whole video. Otherwise it is a frame every 1/fps seconds;
/// if these are fewer than min_frames or more than max_frames, it is that number, as with target_frames.
/// Never more than the video has.
struct VideoSampling {
  double fps = 2;
  std::int32_t min_frames = 16;     ///< 0 or below: no limit, as with
  std::int32_t max_frames = 180;    ///< this one
  std::int32_t target_frames = -1;  ///< above 0 if and only if fps is negative
  FrameChoice choice = FrameChoice::leading;

  friend bool operator==(const VideoSampling&, const VideoSampling&) = default;
};

}  // namespace troupe
