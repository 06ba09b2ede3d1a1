#pragma once
// The images and videos of a request: parts of messages in the forms of every API → MediaSource. Their data
// is moved out of the body; what it decodes to, and whether a URL may be fetched, is not looked at here.
// Private to the parsers of http/api/.
#include <string>
#include <string_view>
#include <vector>

#include "http/api/fields.h"
#include "http/api/openai_request.h"

namespace troupe::http {

class MediaParts {
 public:
  /// Reads mm_processor_kwargs of `body`, which keeps the first failure. `model` outlives this.
  MediaParts(Fields& body, const ModelFacts& model);

  /// Whether parts of this type hold an image or a video: "image_url", "video_url", "input_image", "image",
  /// "video".
  static bool is_visual(std::string_view type);
  /// Whether parts of this type hold something else that no model here reads, like sound or a document.
  static bool is_foreign(std::string_view type);

  /// Takes the item out of a part with a visual type. What is left is {"type": "image_url"} or {"type":
  /// "video_url"}. `path` is the part's.
  Status read(Json& part, const std::string& path);

  /// The refusal of a part that the model does not read, or that is not where one may be
  /// ("unsupported_modality").
  Status refuse(std::string_view type, const std::string& path) const;

  /// What has been read, in order; more of a kind than one request may have is a failure of `fields`.
  std::vector<MediaSource> take(Fields& fields);

 private:
  Status read_source(Json& part, const std::string& path, MediaSource& source) const;
  Status read_details(const Json& part, const Json* object, const std::string& path,
                      MediaSource& source) const;

  const ModelFacts& model_;
  config::MediaSizes sizes_;
  std::vector<MediaSource> read_;
};

}  // namespace troupe::http
