#include "http/pages/pages.h"

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

}  // namespace

const Page* find_page(std::string_view path) {
  for (const Page& page : pages()) {
    if (page.path == path) return &page;
  }
  return nullptr;
}

Output page_output(const Page& page, std::string_view if_none_match) {
  Output output{.kind = Output::Kind::whole, .content = page.content};
  output.headers = {{"ETag", std::string(page.etag)},
                    {"Cache-Control", "no-cache"},  // kept, but asked for again: a new program has new pages
                    {"Content-Security-Policy", std::string(kContentSecurityPolicy)},
                    {"X-Content-Type-Options", "nosniff"},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cross-Origin-Opener-Policy", "same-origin"},
                    {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (names(if_none_match, page.etag)) {
    output.status = 304;
  } else {
    output.body = page.body;
  }
  return output;
}

}  // namespace troupe::http
