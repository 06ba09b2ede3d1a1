#include "text/template/media_marks.h"

#include <algorithm>
#include <string_view>

namespace troupe {

MediaMarks::MediaMarks(std::string image, std::string video)
    : texts_{{"<|image@placeholder|>", MediaKind::image},
             {"<|IMAGE_PLACEHOLDER|>", MediaKind::image},
             {"<|video@placeholder|>", MediaKind::video},
             {"<|VIDEO_PLACEHOLDER|>", MediaKind::video}} {
  for (auto& [text, kind] :
       {std::pair(std::move(image), MediaKind::image), std::pair(std::move(video), MediaKind::video)}) {
    const auto known = [&text = text](const auto& other) { return other.first == text; };
    if (!text.empty() && std::none_of(texts_.begin(), texts_.end(), known)) texts_.emplace_back(text, kind);
  }
}

std::vector<MediaMark> MediaMarks::find(std::span<const TextSpan> spans) const {
  std::vector<MediaMark> marks;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (!spans[i].trusted) continue;
    const std::string_view text = spans[i].text;
    for (std::size_t at = text.find('<'); at != text.npos; at = text.find('<', at)) {
      const auto here = std::find_if(texts_.begin(), texts_.end(), [&](const auto& mark) {
        return text.substr(at).starts_with(mark.first);
      });
      if (here == texts_.end()) {
        ++at;
        continue;
      }
      marks.push_back({i, at, at + here->first.size(), here->second});
      at = marks.back().end;
    }
  }
  return marks;
}

}  // namespace troupe
