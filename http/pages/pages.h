#pragma once
// The pages for people: HTML, scripts and styles of the folder http/pages, as bytes in the program. They hold
// no data and need no key; what their scripts fetch does.
#include <cstddef>
#include <span>
#include <string_view>

#include "http/server/backend.h"

namespace troupe::http {

struct Page {
  std::string_view path;  ///< "/", "/topology", "/docs", or "/pages/NAME" for a file that a page loads
  Output::Content content = Output::Content::html;
  std::string_view body;
  std::string_view gzip;  ///< the body compressed; empty where that is not smaller
  std::string_view etag;  ///< of the contents, with its quotes
};

/// All of them.
std::span<const Page> pages();

/// Null when there is no page with this path.
const Page* find_page(std::string_view path);

/// True when the value of a header Accept-Encoding names gzip, or "*", with a weight above 0.
bool accepts_gzip(std::string_view accept_encoding);

/// The page with its headers, compressed if `gzip` and if that is smaller, or 304 without a body when
/// `if_none_match`, the header, names its contents in that form. The headers allow nothing from elsewhere, no
/// script in the page itself, and no writing of HTML by scripts.
Output page_output(const Page& page, std::string_view if_none_match, bool gzip);

}  // namespace troupe::http
