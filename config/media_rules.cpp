#include "config/media_rules.h"

#include <algorithm>
#include <array>
#include <optional>

namespace troupe::config {
namespace {

constexpr std::array<std::string_view, 14> kKnown = {"image_min_pixels",
                                                     "image_max_pixels",
                                                     "min_pixels",
                                                     "max_pixels",
                                                     "size",
                                                     "video_min_pixels",
                                                     "video_max_pixels",
                                                     "video_fps",
                                                     "video_min_frames",
                                                     "video_max_frames",
                                                     "video_target_frames",
                                                     "video_frames_sample",
                                                     "spatial_conv_size",
                                                     "temporal_conv_size"};
constexpr double kMostFps = 1000;
constexpr std::size_t kMostUnknown = 16;

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  const std::string text = json::to_text(value);
  return text.size() <= 60 ? text : text.substr(0, 56) + "…";
}

/// Reads members of an object by name. The first failure is kept; a null is absent.
class MemberReader {
 public:
  explicit MemberReader(const Json& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  template <class Integer>
  void integer(const char* name, std::int64_t low, std::int64_t high, Integer& into) {
    const Json* value = json::given(object_, name);
    if (value == nullptr) return;
    const auto number = json::integer(*value);
    if (!number || *number < low || *number > high) {
      return expect(name, "a whole number from " + std::to_string(low) + " to " + std::to_string(high),
                    *value);
    }
    into = static_cast<Integer>(*number);
  }
  void pixels(const char* name, std::int64_t& into) { integer(name, 1, kMostPixels, into); }
  void frames(const char* name, std::int32_t& into) { integer(name, -1, kMostFrames, into); }

  void fps(const char* name, double& into) {
    const Json* value = json::given(object_, name);
    if (value == nullptr) return;
    const auto number = json::number(*value);
    if (!number || !((*number > 0 && *number <= kMostFps) || *number == -1)) {
      return expect(name, "a number above 0 and at most 1000, or -1", *value);
    }
    into = *number;
  }

  void choice(const char* name, FrameChoice& into) {
    const Json* value = json::given(object_, name);
    if (value == nullptr) return;
    if (json::is(value, "leading")) {
      into = FrameChoice::leading;
    } else if (json::is(value, "middle")) {
      into = FrameChoice::middle;
    } else {
      expect(name, "\"leading\" or \"middle\"", *value);
    }
  }

  /// A size that the model's layers fix.
  void fixed(const char* name, std::int64_t size) {
    const Json* value = json::given(object_, name);
    if (value != nullptr && json::integer(*value) != size)
      expect(name, std::to_string(size) + ", which is the model's", *value);
  }

  const Json* object(const char* name) {
    const Json* value = json::given(object_, name);
    if (value == nullptr || value->is_object()) return value;
    expect(name, "an object with shortest_edge and longest_edge, both in pixels", *value);
    return nullptr;
  }

  void fail(std::string name, const std::string& message) {
    if (status_.ok()) status_ = invalid(name + " " + message, name, "invalid_value");
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const Status& status() const { return status_; }

 private:
  void expect(const char* name, const std::string& allowed, const Json& value) {
    fail(prefix_ + name, "must be " + allowed + ", got " + shown(value));
  }

  const Json& object_;
  const std::string prefix_;
  Status status_;
};

void check_order(MemberReader& reader, const char* low_name, std::int64_t low, const char* high_name,
                 std::int64_t high) {
  if (low > high) {
    reader.fail(low_name, "(" + std::to_string(low) + ") must be at most " + high_name + " (" +
                              std::to_string(high) + ")");
  }
}

/// The rules between the members, which have their names after `prefix`.
void check_sampling(MemberReader& reader, const std::string& prefix, const VideoSampling& s) {
  const bool has_min = s.min_frames > 0, has_max = s.max_frames > 0;
  if (has_min && has_max) {
    check_order(reader, (prefix + "min_frames").c_str(), s.min_frames, (prefix + "max_frames").c_str(),
                s.max_frames);
  }
  const std::string target = prefix + "target_frames";
  if (s.target_frames <= 0) {
    if (s.fps < 0) reader.fail(prefix + "fps", "must be above 0 unless " + target + " is");
    return;
  }
  if (s.fps > 0) reader.fail(prefix + "fps", "must be -1, or left out, if " + target + " is given");
  if (has_min)
    check_order(reader, (prefix + "min_frames").c_str(), s.min_frames, target.c_str(), s.target_frames);
  if (has_max)
    check_order(reader, target.c_str(), s.target_frames, (prefix + "max_frames").c_str(), s.max_frames);
}

void read_sampling(MemberReader& reader, const Json& members, const std::string& prefix,
                   VideoSampling& sampling) {
  const auto given = [&](const char* name) { return json::given(members, prefix + name) != nullptr; };
  // What is said anew of one of the two ways of counting ends the other.
  if (given("target_frames") && !given("fps")) sampling.fps = -1;
  if (given("fps") && !given("target_frames")) sampling.target_frames = -1;
  reader.fps((prefix + "fps").c_str(), sampling.fps);
  reader.frames((prefix + "min_frames").c_str(), sampling.min_frames);
  reader.frames((prefix + "max_frames").c_str(), sampling.max_frames);
  reader.frames((prefix + "target_frames").c_str(), sampling.target_frames);
  reader.choice((prefix + "frames_sample").c_str(), sampling.choice);
  if (sampling.target_frames <= 0 && sampling.fps < 0 && !given("fps")) sampling.fps = VideoSampling{}.fps;
  check_sampling(reader, prefix, sampling);
}

}  // namespace

Status read_media_sizes(const Json& members, MediaSizes& sizes, std::vector<std::string>& unknown) {
  for (const auto& [name, value] : json::members(members)) {
    if (std::ranges::count(kKnown, name) == 0 && unknown.size() < kMostUnknown) unknown.push_back(name);
  }
  MemberReader reader(members);
  // The names that other servers have, first: this server's own go before them.
  if (const Json* size = reader.object("size")) {
    MemberReader edges(*size, "size.");
    edges.pixels("shortest_edge", sizes.image.min_pixels);
    edges.pixels("longest_edge", sizes.image.max_pixels);
    reader.fail(edges.status());
  }
  reader.pixels("min_pixels", sizes.image.min_pixels);
  reader.pixels("max_pixels", sizes.image.max_pixels);
  reader.pixels("image_min_pixels", sizes.image.min_pixels);
  reader.pixels("image_max_pixels", sizes.image.max_pixels);
  reader.pixels("video_min_pixels", sizes.video.min_pixels);
  reader.pixels("video_max_pixels", sizes.video.max_pixels);
  reader.fixed("spatial_conv_size", kMergeSide);
  reader.fixed("temporal_conv_size", kMergeFrames);
  check_order(reader, "image_min_pixels", sizes.image.min_pixels, "image_max_pixels", sizes.image.max_pixels);
  check_order(reader, "video_min_pixels", sizes.video.min_pixels, "video_max_pixels", sizes.video.max_pixels);
  read_sampling(reader, members, "video_", sizes.sampling);
  return reader.status();
}

Status read_video_sampling(const Json& part, VideoSampling& sampling) {
  MemberReader reader(part);
  read_sampling(reader, part, "", sampling);
  return reader.status();
}

MediaRules media_rules(const MediaOptions& options) {
  MediaRules rules;
  std::vector<std::string> unknown;
  if (const auto sizes = json::parse(options.processor_kwargs))
    (void)read_media_sizes(*sizes, rules.sizes, unknown);
  if (const auto limits = json::parse(options.limit_per_prompt)) {
    const auto take = [&](const char* kind, int& into) {
      const Json* value = json::given(*limits, kind);
      const auto number = value != nullptr ? json::integer(*value) : std::nullopt;
      if (number) into = static_cast<int>(std::clamp<std::int64_t>(*number, 0, 1 << 30));
    };
    take("image", rules.max_images);
    take("video", rules.max_videos);
  }
  return rules;
}

std::string unknown_media_sizes(std::string_view text) {
  MediaSizes sizes;
  std::vector<std::string> unknown;
  if (const auto members = json::parse(text)) (void)read_media_sizes(*members, sizes, unknown);
  if (unknown.empty()) return {};
  std::string names, known;
  for (const std::string& name : unknown) names += (names.empty() ? "\"" : ", \"") + name + "\"";
  for (const std::string_view name : kKnown) known += (known.empty() ? "" : ", ") + std::string(name);
  return "no effect: --mm-processor-kwargs has " + names + "; known are " + known;
}

}  // namespace troupe::config
