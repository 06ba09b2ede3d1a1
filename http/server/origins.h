#pragma once
// Which web pages of other origins may read the server's answers (CORS) and have it do something. Keys travel
// in headers and never in cookies, so a page without a key gets no further than a program without one. But
// where no key is asked for, a browser sends the forms of any page, although the page cannot read the answer.
#include <string>
#include <string_view>
#include <vector>

namespace troupe::http {

class Origins {
 public:
  /// Each "https://name:port", as browsers write it, or "*" for all. Empty: none.
  explicit Origins(std::vector<std::string> allowed) : allowed_(std::move(allowed)) {}

  /// What Access-Control-Allow-Origin says to `origin`, the header Origin; empty: the header is left out.
  std::string_view answer_to(std::string_view origin) const;
  /// True when a web page has sent the request that is neither of this server, which the client calls `host`,
  /// nor of an allowed origin. `origin` and `fetch_site` are the headers Origin and Sec-Fetch-Site: scripts
  /// cannot change them, and clients that are no browsers send neither.
  bool foreign(std::string_view origin, std::string_view fetch_site, std::string_view host) const;
  /// True when answers differ by Origin, which caches must know.
  bool vary() const;

 private:
  std::vector<std::string> allowed_;
};

/// The header names of Access-Control-Request-Headers that a preflight allows: all of them, as the API's
/// clients send headers of their own. Empty when they are no list of names or longer than 2 KiB.
std::string_view allowed_headers(std::string_view requested);

}  // namespace troupe::http
