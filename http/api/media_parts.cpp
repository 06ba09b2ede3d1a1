#include "http/api/media_parts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "http/api/chat_body.h"

namespace troupe::http {
namespace {

constexpr std::array<std::string_view, 5> kVisualTypes = {"image_url", "video_url", "input_image", "image",
                                                          "video"};
constexpr std::array<std::string_view, 7> kForeignTypes = {
    "audio", "audio_url", "document", "file", "input_audio", "input_file", "search_result"};
constexpr std::int64_t kLowDetailPixels = 512 * 512;
constexpr std::size_t kMaxUrlBytes = 8 << 10;
constexpr std::size_t kMaxNameBytes = 256;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool begins_with(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::equal(word.begin(), word.end(), text.begin(), [](char a, char b) { return a == lower(b); });
}

bool ends_with(std::string_view text, std::string_view word) {
  return text.size() >= word.size() && begins_with(text.substr(text.size() - word.size()), word);
}

/// "http" of "http://…"; empty: the text begins with no scheme.
std::string_view scheme_of(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && end < 32 &&
         (is_letter(text[end]) || (end > 0 && ((text[end] >= '0' && text[end] <= '9') || text[end] == '+' ||
                                               text[end] == '-' || text[end] == '.')))) {
    ++end;
  }
  return end > 0 && end < text.size() && text[end] == ':' ? text.substr(0, end) : std::string_view();
}

/// Whether a text without a scheme can be base64, by its first characters.
bool looks_like_base64(std::string_view text) {
  const std::string_view head = text.substr(0, 64);
  return std::all_of(head.begin(), head.end(), [](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') ||
           std::string_view("+/-_=\r\n").find(c) != std::string_view::npos;
  });
}

Status bad_media(const std::string& path, const std::string& why) {
  return invalid(path + " " + why, path, "invalid_value");
}

/// Splits the frames of "data:video/jpeg;base64,A,B,C" behind the first comma.
Status take_frames(std::string_view data, MediaSource& source) {
  const auto count = static_cast<std::size_t>(std::count(data.begin(), data.end(), ',')) + 1;
  if (count > static_cast<std::size_t>(config::kMostFrames)) {
    return bad_media(source.param, "has " + std::to_string(count) + " frames, but may have at most " +
                                       std::to_string(config::kMostFrames));
  }
  source.frames.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view frame = data.substr(0, data.find(','));
    if (frame.empty()) return bad_media(source.param, "has nothing in frame " + std::to_string(i));
    source.frames.emplace_back(frame);
    data.remove_prefix(std::min(data.size(), frame.size() + 1));
  }
  return {};
}

Status take_base64(std::string text, MediaSource& source) {
  if (text.empty()) return bad_media(source.param, "is empty");
  if (!looks_like_base64(text)) {
    return bad_media(source.param,
                     "is neither base64 nor a data:, http(s):// or file:// URL: it begins with " +
                         excerpt(Json(text.substr(0, 32))));
  }
  source.file = std::move(text);
  return {};
}

Status take_data_url(std::string text, MediaSource& source) {
  constexpr std::size_t kScheme = sizeof("data:") - 1;
  const std::size_t comma = text.find(',');
  const std::string_view head = std::string_view(text).substr(0, comma == text.npos ? kScheme : comma);
  if (!ends_with(head, ";base64")) {
    return bad_media(source.param,
                     "must have the form data:TYPE;base64,DATA, got " + excerpt(Json(cut(text))));
  }
  if (comma + 1 == text.size()) return bad_media(source.param, "has no data behind \"base64,\"");
  const std::string_view type = head.substr(kScheme, head.find(';') - kScheme);
  if (source.kind == MediaKind::video && type.size() == 10 && begins_with(type, "video/jpeg"))
    return take_frames(std::string_view(text).substr(comma + 1), source);
  text.erase(0, comma + 1);  // in place
  source.file = std::move(text);
  return {};
}

/// The text of a member: a URL, or base64. It is moved from.
Status take_text(Json& value, std::string path, MediaSource& source) {
  source.param = std::move(path);
  std::string* text = json::text(value);
  if (text == nullptr) {
    return invalid(source.param + " must be a string, got " + excerpt(value), source.param, "invalid_type");
  }
  const std::string_view scheme = scheme_of(*text);
  if (scheme.empty()) return take_base64(std::move(*text), source);
  if (scheme.size() == 4 && begins_with(scheme, "data")) return take_data_url(std::move(*text), source);
  const std::string_view rest = std::string_view(*text).substr(scheme.size());
  const bool known = (scheme.size() == 4 && (begins_with(scheme, "http") || begins_with(scheme, "file"))) ||
                     (scheme.size() == 5 && begins_with(scheme, "https"));
  if (!known || !rest.starts_with("://")) {
    return bad_media(source.param, "must be base64 or a data:, http://, https:// or file:// URL, got " +
                                       excerpt(Json(cut(*text))));
  }
  if (text->size() > kMaxUrlBytes) {
    return bad_media(source.param, "is a URL of " + std::to_string(text->size()) +
                                       " bytes, but may have at most " + std::to_string(kMaxUrlBytes));
  }
  source.url = std::move(*text);
  return {};
}

/// The value of `image_url`, `video_url`: a text, or {url}. Null and an object without one are absent.
Status take_url(Json* value, const std::string& path, MediaSource& source) {
  if (value == nullptr) return {};
  if (!value->is_object()) {
    if (value->is_string()) return take_text(*value, path, source);
    return invalid(path + " must be a string or an object with a url, got " + excerpt(*value), path,
                   "invalid_type");
  }
  Json* url = member_of(*value, "url");
  return url != nullptr ? take_text(*url, path + ".url", source) : Status();
}

/// {type: "base64", media_type, data} or {type: "url", url}, the source of an image block.
Status take_block_source(Json& block, const std::string& path, MediaSource& source) {
  const std::string type_path = path + ".type";
  const Json* type = member_of(block, "type");
  if (json::is(type, "base64")) {
    Json* data = member_of(block, "data");
    if (data == nullptr) return missing_field(path + ".data");
    source.param = path + ".data";
    std::string* text = json::text(*data);
    if (text == nullptr) {
      return invalid(source.param + " must be a string, got " + excerpt(*data), source.param, "invalid_type");
    }
    if (!scheme_of(*text).empty()) return take_text(*data, source.param, source);
    if (text->empty()) return bad_media(source.param, "is empty");
    source.file = std::move(*text);  // said to be base64: who decodes it names the place of a fault
    return {};
  }
  if (json::is(type, "url")) {
    Json* url = member_of(block, "url");
    return url != nullptr ? take_text(*url, path + ".url", source) : missing_field(path + ".url");
  }
  if (json::is(type, "file"))
    return not_offered(type_path, "\"file\" is not offered: this server stores no files");
  return invalid(
      type_path + " must be \"base64\" or \"url\", got " + (type == nullptr ? "nothing" : excerpt(*type)),
      type_path, "invalid_value");
}

/// A list of pictures: the frames of a video.
Status take_frame_list(Json& list, const std::string& path, MediaSource& source) {
  source.param = path;
  if (list.empty()) return bad_media(path, "must hold at least one frame");
  if (list.size() > static_cast<std::size_t>(config::kMostFrames)) {
    return bad_media(path, "has " + std::to_string(list.size()) + " frames, but may have at most " +
                               std::to_string(config::kMostFrames));
  }
  std::size_t i = 0;
  for (Json& item : json::items(list)) {
    MediaSource frame;
    const std::string place = path + "." + std::to_string(i++);
    if (Status status = take_text(item, place, frame); !status.ok()) return status;
    if (!frame.url.empty()) return bad_media(place, "must be base64 or a data: URL: a frame is not fetched");
    source.frames.push_back(std::move(frame.file));
  }
  return {};
}

Status read_sizes(Fields& body, const ModelFacts& model, config::MediaSizes& sizes) {
  constexpr std::string_view kName = "mm_processor_kwargs";
  const Json* given = body.find(kName);
  if (given == nullptr) return {};
  const std::string path = body.path(kName);
  if (!given->is_object())
    return invalid(path + " must be an object, got " + excerpt(*given), path, "invalid_type");
  if (!model.sees) {
    body.leave_out(path);
    return {};
  }
  const config::MediaSizes most = sizes;
  std::vector<std::string> unknown;
  Status status = config::read_media_sizes(*given, sizes, unknown);
  if (!status.ok()) {
    status.param = path + "." + status.param;
    status.message = path + "." + status.message;
    return status;
  }
  for (const std::string& name : unknown) body.leave_out(path + "." + name);
  const auto clamp = [](PixelLimits& limits, const PixelLimits& server) {
    limits.max_pixels = std::min(limits.max_pixels, server.max_pixels);
    limits.min_pixels = std::min(limits.min_pixels, limits.max_pixels);
  };
  clamp(sizes.image, most.image);
  clamp(sizes.video, most.video);
  return {};
}

template <std::size_t N>
bool is_listed(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

MediaParts::MediaParts(Fields& body, const ModelFacts& model) : model_(model), sizes_(model.media.sizes) {
  body.fail(read_sizes(body, model, sizes_));
}

bool MediaParts::is_visual(std::string_view type) { return is_listed(kVisualTypes, type); }
bool MediaParts::is_foreign(std::string_view type) { return is_listed(kForeignTypes, type); }

Status MediaParts::refuse(std::string_view type, const std::string& path) const {
  std::string why = ", but this model reads text only";
  if (model_.sees && is_visual(type)) {
    why = ", but images and videos belong in messages of the user and of tools";
  } else if (model_.sees) {
    why = ", but this model reads text, images and videos only";
  }
  return {Code::unsupported, path + " has the type \"" + std::string(type) + "\"" + why, path,
          "unsupported_modality"};
}

Status MediaParts::read(Json& part, const std::string& path) {
  const std::string* given = json::text(member_of(part, "type"));
  const std::string type = given != nullptr ? *given : std::string();
  if (!model_.sees) return refuse(type, path);
  const bool video = type == "video_url" || type == "video";
  MediaSource source{.kind = video ? MediaKind::video : MediaKind::image};
  source.limits = video ? sizes_.video : sizes_.image;
  if (video) source.sampling = sizes_.sampling;
  if (Status status = read_source(part, path, source); !status.ok()) return status;
  read_.push_back(std::move(source));
  part = Json::object();
  json::put(part, "type", video ? "video_url" : "image_url");
  return {};
}

Status MediaParts::read_source(Json& part, const std::string& path, MediaSource& source) const {
  const bool video = source.kind == MediaKind::video;
  const char* const name = video ? "video_url" : "image_url";
  Json* url = member_of(part, name);
  if (member_of(part, "file_id") != nullptr || (url != nullptr && member_of(*url, "file_id") != nullptr)) {
    return not_offered(path + ".file_id",
                       std::string("is not offered: this server stores no files. Send ") + name);
  }
  if (Status status = read_details(part, url, path, source); !status.ok()) return status;
  Status status = take_url(url, path + "." + name, source);
  const auto absent = [&] { return source.file.empty() && source.frames.empty() && source.url.empty(); };
  if (Json* block = member_of(part, "source"); status.ok() && absent() && block != nullptr)
    status = take_block_source(*block, path + ".source", source);
  // As Python clients and tool protocols write them.
  for (const char* other : {video ? "video" : "image", "data"}) {
    Json* value = member_of(part, other);
    if (!status.ok() || !absent() || value == nullptr) continue;
    const std::string place = path + "." + other;
    status = video && value->is_array() ? take_frame_list(*value, place, source)
                                        : take_text(*value, place, source);
  }
  if (!status.ok() || !absent()) return status;
  if (source.name.empty()) {
    const std::string place = path + "." + name;
    return invalid(place + " is missing: " + (video ? "a video" : "an image") +
                       " needs data, a URL, or the uuid of one that was sent before",
                   place, "missing_required_parameter");
  }
  source.param = path + ".uuid";
  return {};
}

Status MediaParts::read_details(const Json& part, const Json* object, const std::string& path,
                                MediaSource& source) const {
  for (const Json* holder : {&part, object}) {
    if (holder == nullptr) continue;
    const std::string place =
        holder == &part ? path : path + (source.kind == MediaKind::video ? ".video_url" : ".image_url");
    if (const Json* uuid = json::given(*holder, "uuid"); uuid != nullptr) {
      const std::string* text = json::text(uuid);
      if (text == nullptr || text->empty() || text->size() > kMaxNameBytes) {
        return invalid(place + ".uuid must be a string of 1 to " + std::to_string(kMaxNameBytes) +
                           " bytes, got " +
                           (text != nullptr ? std::to_string(text->size()) + " bytes" : excerpt(*uuid)),
                       place + ".uuid", "invalid_value");
      }
      source.name = *text;
    }
    if (const Json* detail = json::given(*holder, "detail"); detail != nullptr) {
      const bool low = json::is(detail, "low");
      if (!low && !json::is(detail, "high") && !json::is(detail, "auto")) {
        return invalid(place + ".detail must be auto, high or low, got " + excerpt(*detail),
                       place + ".detail", "invalid_value");
      }
      if (low) {
        source.limits.max_pixels = std::min(source.limits.max_pixels, kLowDetailPixels);
        source.limits.min_pixels = std::min(source.limits.min_pixels, source.limits.max_pixels);
      }
    }
    if (source.kind != MediaKind::video) continue;
    if (Status status = config::read_video_sampling(*holder, source.sampling); !status.ok()) {
      status.param = place + "." + status.param;
      status.message = place + "." + status.message;
      return status;
    }
  }
  return {};
}

std::vector<MediaSource> MediaParts::take(Fields& fields) {
  const auto check = [&](MediaKind kind, const char* name, int limit) {
    const auto count =
        std::count_if(read_.begin(), read_.end(), [&](const auto& s) { return s.kind == kind; });
    if (count <= limit) return;
    auto left = limit;
    const auto first = std::find_if(read_.begin(), read_.end(),
                                    [&](const auto& s) { return s.kind == kind && left-- == 0; });
    fields.fail(invalid("Too many " + std::string(name) + " items in prompt, got " + std::to_string(count) +
                            " but limit is " + std::to_string(limit) + " (--limit-mm-per-prompt)",
                        first->param, "too_many_elements"));
  };
  check(MediaKind::image, "image", model_.media.max_images);
  check(MediaKind::video, "video", model_.media.max_videos);
  return std::exchange(read_, {});
}

}  // namespace troupe::http
