// Bodies of every API, to a model that reads text and to one that sees. What is accepted keeps its own
// limits.
#include <iterator>

#include "fuzz/target.h"
#include "http/api/messages_request.h"
#include "http/api/openai_request.h"
#include "http/api/responses_request.h"

namespace troupe::http {
namespace {

/// The parts of images and videos that are left in the messages, which hold nothing but their type.
std::ptrdiff_t visual_parts(const Json& messages) {
  std::ptrdiff_t found = 0;
  for (const Json& message : json::items(messages)) {
    const Json* content = json::member(message, "content");
    if (content == nullptr) continue;
    for (const Json& part : json::items(*content)) {
      const Json* type = json::member(part, "type");
      if (!json::is(type, "image_url") && !json::is(type, "video_url")) continue;
      fuzz::require(part.size() == 1, "the data of a part has left the messages");
      ++found;
    }
  }
  return found;
}

void check(const Result<Parsed>& result, const config::LimitOptions& limits, const ModelFacts& model) {
  if (!result.ok()) return fuzz::require(!result.status().message.empty(), "a refusal says why");
  const std::int32_t n = result->request.generation.choices;
  fuzz::require(n >= 1 && n <= limits.max_n, "n is within its limit");
  const Source& source = result->request.source;
  const auto items = static_cast<std::ptrdiff_t>(source.media.size());
  fuzz::require(items <= model.media.max_images + model.media.max_videos, "so many items are allowed");
  fuzz::require(items == 0 || model.sees, "a model that reads text gets no items");
  fuzz::require(visual_parts(source.conversation.messages) == items, "each item has its place");
  for (const MediaSource& item : source.media) {
    const int forms = int{!item.file.empty()} + int{!item.frames.empty()} + int{!item.url.empty()};
    fuzz::require(forms == 1 || (forms == 0 && !item.name.empty()), "an item has one source, or a name");
    fuzz::require(item.limits.min_pixels <= item.limits.max_pixels, "its sizes are in order");
    fuzz::require(!item.param.empty(), "it knows its field");
  }
}

FUZZ_TARGET(json_request) {
  if (input.empty()) return;
  static const config::LimitOptions limits;
  static const ModelFacts blind{.names = {"m"}, .vocab_size = 1000};
  static const ModelFacts seeing = [] {
    ModelFacts model{.names = {"m"}, .vocab_size = 1000};
    model.sees = true;
    model.media.max_images = model.media.max_videos = 4;
    return model;
  }();
  const ModelFacts& model = input[0] >= 128 ? seeing : blind;
  const RequestRules rules{limits, model};
  const std::string_view body = fuzz::text(input.subspan(1));
  constexpr decltype(&parse_chat) kParsers[] = {parse_chat,        parse_completion, parse_responses,
                                                parse_messages,    parse_tokenize,   parse_detokenize,
                                                parse_count_tokens};
  check(kParsers[input[0] % std::size(kParsers)](body, rules), limits, model);
}

}  // namespace
}  // namespace troupe::http
