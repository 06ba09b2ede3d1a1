#include "fetch/fetch_main.h"

#include <curl/curl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "base/child_words.h"
#include "base/file_writes.h"
#include "base/process_limits.h"
#include "fetch/media_url.h"

namespace troupe::fetch {
namespace {

constexpr std::uint64_t kPrivateBytes = std::uint64_t{256} << 20;

std::vector<std::string> lines_of(int fd) {
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t count; (count = ::pread(fd, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0;)
    text.append(part.data(), static_cast<std::size_t>(count));
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

int fetch_main(const std::vector<std::string>& words) {
  const int in = descriptor_of(words, "--in="), out = descriptor_of(words, "--out="),
            say = descriptor_of(words, "--say=");
  const std::vector<std::string> lines = in < 0 ? std::vector<std::string>() : lines_of(in);
  if (lines.size() < 3 || out < 0 || say < 0) {
    std::fputs("troupe fetch is a child process of `troupe serve`: not to be started by hand\n", stderr);
    return 2;
  }
  limit_process(kPrivateBytes);
  UrlRules rules{{lines.begin() + 3, lines.end()}};
  std::int64_t milliseconds = 0;
  std::from_chars(lines[0].data(), lines[0].data() + lines[0].size(), rules.bytes);
  std::from_chars(lines[1].data(), lines[1].data() + lines[1].size(), milliseconds);
  rules.time = std::chrono::milliseconds(milliseconds);
  curl_global_init(CURL_GLOBAL_DEFAULT);
  const Status status = fetch_file(lines[2], rules, [&](std::string_view bytes) -> Status {
    return write_all(out, bytes) == bytes.size()
               ? Status()
               : failure(Code::unavailable, "cannot be kept: memory does not suffice");
  });
  if (status.ok()) return 0;
  write_all(say, status.reason + "\n" + status.message);
  return 1;
}

}  // namespace troupe::fetch
