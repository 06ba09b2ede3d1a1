#include "http/pages/pages.h"

#include <cstddef>
#include <optional>
#include <string>

#include "http/server/request_head.h"

namespace troupe::http {
namespace {

constexpr std::string_view kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri "
    "'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// True when the header lists `etag`, weak or strong, or is "*".
bool names(std::string_view if_none_match, std::string_view etag) {
  return if_none_match == "*" || if_none_match.find(etag) != if_none_match.npos;
}

/// True for "q=0", "q=0.", "q=0.0" and so on.
bool is_zero_weight(std::string_view parameter) {
  if (!same_word(parameter.substr(0, 2), "q=")) return false;
  const std::string_view weight = trimmed(parameter.substr(2));
  return !weight.empty() && weight.find_first_not_of("0.") == weight.npos;
}

}  // namespace

const Page* find_page(std::string_view path) {
  for (const Page& page : pages()) {
    if (page.path == path) return &page;
  }
  return nullptr;
}

bool accepts_gzip(std::string_view accept_encoding) {
  std::optional<bool> any;  // what "*" says, which holds for what is not named
  for (std::string_view rest = accept_encoding; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view element = rest.substr(0, comma);
    const std::size_t semicolon = element.find(';');
    const std::string_view name = trimmed(element.substr(0, semicolon));
    const bool wanted = semicolon == element.npos || !is_zero_weight(trimmed(element.substr(semicolon + 1)));
    if (same_word(name, "gzip") || same_word(name, "x-gzip")) return wanted;
    if (name == "*") any = wanted;
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
  }
  return any.value_or(false);
}

Output page_output(const Page& page, std::string_view if_none_match, bool gzip) {
  Output output{.kind = Output::Kind::whole, .content = page.content};
  const bool compressed = gzip && !page.gzip.empty();
  std::string etag(page.etag);
  if (compressed) etag.insert(etag.size() - 1, "-gzip");  // another form of the contents has another tag
  output.headers = {{"ETag", etag},
                    {"Cache-Control", "no-cache"},  // kept, but asked for again: a new program has new pages
                    {"Content-Security-Policy", std::string(kContentSecurityPolicy)},
                    {"X-Content-Type-Options", "nosniff"},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cross-Origin-Opener-Policy", "same-origin"},
                    {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (!page.gzip.empty()) output.headers.emplace_back("Vary", "Accept-Encoding");
  if (names(if_none_match, etag)) {
    output.status = 304;
  } else if (compressed) {
    output.headers.emplace_back("Content-Encoding", "gzip");
    output.body = page.gzip;
  } else {
    output.body = page.body;
  }
  return output;
}

}  // namespace troupe::http
