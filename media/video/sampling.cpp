#include "media/video/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "media/pixel_grid.h"

namespace troupe::media {
namespace {

/// `count` equal parts of the video, and one frame of each.
std::vector<std::int32_t> spread(std::int32_t frames, std::int32_t count, FrameChoice choice) {
  count = std::min(count, frames);
  const double step = static_cast<double>(frames) / count;
  const auto edge = [&](std::int32_t i) { return i == count ? frames : static_cast<std::int32_t>(i * step); };
  std::vector<std::int32_t> out;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t first = edge(i), last = edge(i + 1) - 1;
    out.push_back(choice == FrameChoice::leading ? first : (first + last) / 2);
  }
  return out;
}

/// Frames at equal distances of time, rounded half to even.
std::vector<std::int32_t> at_rate(const VideoFacts& facts, double fps, FrameChoice choice) {
  const double distance = 1 / fps;
  const double begin = choice == FrameChoice::middle ? distance / 2 : 0;
  const double end = facts.seconds() + begin;
  const auto count = static_cast<std::int32_t>(std::ceil((end - begin) / distance));
  std::vector<std::int32_t> out;
  for (std::int32_t i = 0; i < count; ++i) {
    const double frame = std::nearbyint((begin + i * distance) * facts.frames_per_second);
    if (frame < facts.frames) out.push_back(static_cast<std::int32_t>(frame));
  }
  return out;
}

}  // namespace

Status invalid_video(std::string message) { return invalid(std::move(message), {}, "invalid_video"); }
Status unsupported_video(std::string message) { return invalid(std::move(message), {}, "unsupported_video"); }

Result<std::vector<std::int32_t>> sampled_frames(const VideoFacts& facts, const VideoSampling& sampling) {
  if (facts.frames < 1 || !(facts.frames_per_second > 0)) return invalid_video("is a video without frames");
  if (sampling.target_frames > 0) return spread(facts.frames, sampling.target_frames, sampling.choice);
  const double wanted = facts.seconds() * sampling.fps;
  std::vector<std::int32_t> out;
  if (sampling.min_frames > 0 && wanted < sampling.min_frames) {
    out = spread(facts.frames, sampling.min_frames, sampling.choice);
  } else if (sampling.max_frames > 0 && wanted >= sampling.max_frames + 1.0) {
    out = spread(facts.frames, sampling.max_frames, sampling.choice);
  } else {
    out = at_rate(facts, sampling.fps, sampling.choice);
  }
  if (out.empty()) out.push_back(0);
  return out;
}

double time_of(std::int32_t frame, const VideoFacts& facts) { return frame * facts.seconds() / facts.frames; }

Result<PatchGrid> video_grid(const VideoFacts& facts, std::size_t frames, const PixelLimits& limits) {
  auto grid = grid_of(facts.width, facts.height, limits);
  if (grid.ok()) grid->frames = static_cast<std::int32_t>((frames + 1) / kMergeFrames * kMergeFrames);
  return grid;
}

std::string stamp_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  char text[64];
  std::snprintf(text, sizeof text, "time: %02lld:%02lld:%05.2f", static_cast<long long>(whole / 3600),
                static_cast<long long>(whole / 60 % 60), seconds - static_cast<double>(whole / 60 * 60));
  return text;
}

}  // namespace troupe::media
