// Requests as bytes: whatever comes, reading it in other pieces gives the same requests and the same refusal.
#include <string>
#include <vector>

#include "fuzz/target.h"
#include "http/server/request_reader.h"

namespace troupe::http {
namespace {

/// Everything that a connection would act on, as text.
std::string read(fuzz::Bytes input, std::size_t piece) {
  config::LimitOptions limits;
  limits.max_body_bytes = 4096;
  RequestReader reader(limits);
  std::string seen;
  bool in_body = false;
  for (std::size_t at = 0; at < input.size();) {
    const std::size_t length = std::min(piece, input.size() - at);
    const std::string_view bytes = fuzz::text(input.subspan(at, length));
    reader.append({bytes.data(), bytes.size()});
    at += length;
    for (;;) {
      const auto progress = in_body ? reader.read_body() : reader.read_head();
      if (progress == RequestReader::Progress::need_more) break;
      if (progress == RequestReader::Progress::refused) return seen + "refused";  // why may differ
      if (!in_body) {
        const HeadView head = reader.head();
        seen += std::string(head.method) + " " + std::string(head.target) + "\n";
        if (reader.facts().content_length.value_or(0) > static_cast<std::uint64_t>(limits.max_body_bytes)) {
          return seen + "too long";  // as a connection does
        }
        in_body = true;
        continue;
      }
      fuzz::require(reader.body().size() <= static_cast<std::size_t>(limits.max_body_bytes),
                    "a body is within its limit");
      seen += reader.body() + "\n" + (reader.facts().keep_alive ? "keep\n" : "close\n");
      reader.end_request();
      in_body = false;
    }
  }
  return seen;
}

FUZZ_TARGET(http_head) {
  if (input.empty()) return;
  const std::size_t piece = 1 + input[0] % 64;
  input = input.subspan(1);
  const std::string whole = read(input, input.size() + 1), pieces = read(input, piece);
  fuzz::require(whole == pieces, "the pieces in which a request comes do not matter");
}

}  // namespace
}  // namespace troupe::http
