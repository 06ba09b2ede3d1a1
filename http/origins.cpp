#include "http/origins.h"

#include <algorithm>

namespace troupe::http {

std::string_view Origins::answer_to(std::string_view origin) const {
  if (origin.empty()) return {};
  for (const std::string& allowed : allowed_) {
    if (allowed == "*" || allowed == origin) return allowed;
  }
  return {};
}

bool Origins::vary() const {
  return !allowed_.empty() && std::find(allowed_.begin(), allowed_.end(), "*") == allowed_.end();
}

std::string_view allowed_headers(std::string_view requested) {
  constexpr std::size_t kLongest = 2 << 10;
  const bool names = std::all_of(requested.begin(), requested.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == ',' ||
           c == ' ';
  });
  return names && requested.size() <= kLongest ? requested : std::string_view();
}

}  // namespace troupe::http
