#include "actors/session/stop_filter.h"

#include <algorithm>

namespace troupe {

std::string StopFilter::push(std::string_view text, bool may_stop) {
  if (stopped_) return {};
  if (stops_.empty()) return std::string(text);
  const std::size_t before = held_.size();
  held_ += text;

  std::size_t first = std::string::npos, end = 0;
  for (const std::string& stop : stops_) {
    if (!may_stop) break;
    // A match ends in `text`: what ended before was allowed to.
    const std::size_t at = held_.find(stop, before < stop.size() ? 0 : before - stop.size() + 1);
    if (at == std::string::npos || at > first) continue;
    if (at == first && end <= at + stop.size()) continue;
    first = at;
    end = at + stop.size();
    met_ = stop;
  }
  if (first != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, keep_ ? end : first);
    held_.clear();
    return out;
  }

  const std::size_t keep_back = held_tail();
  std::string out = held_.substr(0, held_.size() - keep_back);
  held_.erase(0, out.size());
  return out;
}

std::string StopFilter::flush() {
  std::string out = std::move(held_);
  held_.clear();
  return stopped_ ? std::string() : out;
}

/// Length of the longest suffix of held_ that some stop string begins with.
std::size_t StopFilter::held_tail() const {
  std::size_t longest = 0;
  for (const std::string& stop : stops_) {
    const std::size_t most = std::min(held_.size(), stop.size() - 1);
    for (std::size_t n = most; n > longest; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) {
        longest = n;
        break;
      }
    }
  }
  return longest;
}

}  // namespace troupe
