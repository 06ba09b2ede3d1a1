#include "http/server/origins.h"

#include <algorithm>

#include "http/server/request_head.h"

namespace troupe::http {
namespace {

/// Without the port that a scheme has by itself: browsers leave it out, other parts of a request's way may
/// not.
std::string_view without_port(std::string_view authority, std::string_view port) {
  return authority.ends_with(port) ? authority.substr(0, authority.size() - port.size()) : authority;
}

bool same_origin(std::string_view origin, std::string_view host) {
  struct Scheme {
    std::string_view begin;
    std::string_view port;
  };
  constexpr Scheme kSchemes[] = {{"http://", ":80"}, {"https://", ":443"}};
  for (const Scheme& scheme : kSchemes) {
    if (!same_word(origin.substr(0, scheme.begin.size()), scheme.begin)) continue;
    return same_word(without_port(origin.substr(scheme.begin.size()), scheme.port),
                     without_port(host, scheme.port));
  }
  return false;
}

}  // namespace

std::string_view Origins::answer_to(std::string_view origin) const {
  if (origin.empty()) return {};
  for (const std::string& allowed : allowed_) {
    if (allowed == "*" || allowed == origin) return allowed;
  }
  return {};
}

bool Origins::foreign(std::string_view origin, std::string_view fetch_site, std::string_view host) const {
  if (!answer_to(origin).empty()) return false;
  // What the browser says holds also behind a proxy that puts another name into Host.
  if (!fetch_site.empty()) return !same_word(fetch_site, "same-origin") && !same_word(fetch_site, "none");
  return !origin.empty() && !same_origin(origin, host);
}

bool Origins::vary() const {
  return !allowed_.empty() && std::find(allowed_.begin(), allowed_.end(), "*") == allowed_.end();
}

std::string_view allowed_headers(std::string_view requested) {
  constexpr std::size_t kLongest = 2 << 10;
  const bool names = std::all_of(requested.begin(), requested.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == ',' || c == ' ';
  });
  return names && requested.size() <= kLongest ? requested : std::string_view();
}

}  // namespace troupe::http
