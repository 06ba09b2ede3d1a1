#pragma once
// Status lines and headers, as bytes.
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "http/server/backend.h"

namespace troupe::http {

struct ResponseHead {
  std::uint16_t status = 200;
  std::string_view content_type;  ///< empty: there is no body
  std::string_view request_id;
  std::string_view date;                        ///< of http_date()
  std::string_view allow;                       ///< 405 only
  std::string_view ignored;                     ///< of ignored_text(), or empty
  std::optional<std::uint64_t> content_length;  ///< absent: a stream
  bool chunked = false;
  bool close = false;             ///< Connection: close
  bool stream = false;            ///< server-sent events: not to be cached or buffered
  std::string_view allow_origin;  ///< of Origins::answer_to()
  bool vary_origin = false;
};

/// Appends status line, headers and the empty line. Extra headers come from the backend, not from clients.
void append_response_head(std::string& out, const ResponseHead& head,
                          const std::vector<std::pair<std::string, std::string>>& extra);

std::string_view content_type(Output::Content content);

/// The value of the header x-troupe-ignored: the paths of what has no effect, with commas; empty when there
/// are none. What a client wrote is cut to printable ASCII.
std::string ignored_text(const std::vector<std::string>& ignored_fields);

/// `now` as an IMF-fixdate, the form of the Date header.
std::string http_date(std::time_t now);

/// Appends `bytes` as one chunk of a chunked body; nothing when empty.
void append_chunk(std::string& out, std::string_view bytes);
constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace troupe::http
