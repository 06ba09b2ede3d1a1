#include "config/nearest.h"

#include <algorithm>

namespace troupe::config {

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table are enough: a swap looks back two.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string_view nearest(std::string_view name, const std::vector<std::string_view>& candidates) {
  constexpr std::size_t kLongest = 64;  // no name is longer; limits the time for hostile input
  if (name.size() > kLongest || name.size() < 2) return {};
  std::string_view best;
  int best_distance = std::max<int>(1, static_cast<int>(name.size()) / 3) + 1;
  for (std::string_view candidate : candidates) {
    const int distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty()) return best;
  for (std::string_view candidate : candidates) {
    if (name.size() >= 4 && candidate.starts_with(name)) return candidate;
  }
  return {};
}

std::string did_you_mean(std::string_view name, const std::vector<std::string_view>& candidates,
                         std::string_view prefix) {
  const std::string_view best = nearest(name, candidates);
  if (best.empty()) return {};
  return "; did you mean " + std::string(prefix) + std::string(best) + "?";
}

}  // namespace troupe::config
