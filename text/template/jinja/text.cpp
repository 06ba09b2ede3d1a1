#include "text/template/jinja/text.h"

#include <algorithm>

namespace troupe::jinja {

void Text::append(const Text& tail) {
  if (tail.empty()) return;
  if (empty()) {
    *this = tail;
    return;
  }
  const bool last_trusted = first_trusted_ == (borders_.size() % 2 == 0);
  if (last_trusted != tail.first_trusted_) borders_.push_back(bytes_.size());
  for (std::size_t border : tail.borders_) borders_.push_back(bytes_.size() + border);
  bytes_ += tail.bytes_;
}

void Text::append(std::string_view tail, bool trusted) {
  if (tail.empty()) return;
  if (empty()) {
    first_trusted_ = trusted;
  } else if ((first_trusted_ == (borders_.size() % 2 == 0)) != trusted) {
    borders_.push_back(bytes_.size());
  }
  bytes_ += tail;
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  Text out;
  if (begin >= end) return out;
  out.bytes_ = bytes_.substr(begin, end - begin);
  const auto after = std::upper_bound(borders_.begin(), borders_.end(), begin);
  out.first_trusted_ = first_trusted_ == ((after - borders_.begin()) % 2 == 0);
  for (auto border = after; border != borders_.end() && *border < end; ++border) {
    out.borders_.push_back(*border - begin);
  }
  return out;
}

std::vector<TextSpan> Text::spans() const {
  std::vector<TextSpan> out;
  for_each_run([&](std::string_view run, bool trusted) { out.push_back({std::string(run), trusted}); });
  return out;
}

}  // namespace troupe::jinja
