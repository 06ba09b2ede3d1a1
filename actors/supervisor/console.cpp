#include "actors/supervisor/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "actors/supervisor/say.h"
#include "config/wrap.h"

namespace troupe::supervisor {
namespace {

constexpr Duration kLineInterval = std::chrono::seconds(10);
constexpr const char* kEraseLine = "\r\x1b[K";

constexpr const char* kBold = "\x1b[1m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kRed = "\x1b[31m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kPlain = "\x1b[0m";

/// Columns of the terminal behind `fd`; nothing if it is none or does not tell.
std::optional<int> columns_of(int fd) {
  winsize size = {};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return std::nullopt;
  return size.ws_col;
}

std::string wrapped(const std::string& line, std::optional<int> columns) {
  constexpr int kNarrowest = 20, kIndent = 2;
  return columns ? config::wrap(line, kIndent, std::max(*columns, kNarrowest)) : line;
}

/// `lines` with the first word of each in bold.
std::string with_bold_heads(const std::string& lines) {
  std::string out;
  std::size_t at = 0;
  while (at < lines.size()) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size() - 1) + 1;
    const std::size_t word = std::min(lines.find_first_of(" \n", at), end);
    out += kBold + lines.substr(at, word - at) + kPlain + lines.substr(word, end - word);
    at = end;
  }
  return out;
}

}  // namespace

std::string fitting(const std::vector<std::string>& parts, std::size_t columns) {
  std::string line;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    if (line.empty()) {
      line = part.substr(0, columns);
    } else if (line.size() + 2 + part.size() <= columns) {
      line += "  " + part;
    } else {
      break;
    }
  }
  return line;
}

void Console::put(int fd, const std::string& text) {
  const std::string line = std::exchange(shown_, {});
  if (line.empty()) return say(fd, text);
  say(STDOUT_FILENO, kEraseLine);
  say(fd, text);
}

void Console::tell(const std::string& lines) {
  if (!style_.quiet) put(STDOUT_FILENO, style_.output_colour ? with_bold_heads(lines) : lines);
}

void Console::warn(const std::string& line) { complain(line, kYellow); }

void Console::fail(const std::string& line) { complain(line, kRed); }

void Console::complain(const std::string& line, const char* colour) {
  const std::string text = wrapped(line, columns_of(STDERR_FILENO));
  put(STDERR_FILENO, style_.error_colour ? colour + text + kPlain + "\n" : text + "\n");
}

bool Console::due(TimePoint now) const { return !printed_ || now - *printed_ >= kLineInterval; }

void Console::show(const std::vector<std::string>& parts, TimePoint now) {
  if (style_.quiet) return;
  if (!style_.live) {
    if (!printed_) printed_ = now;  // ten seconds after the start at the earliest
    if (!due(now)) return;
    printed_ = now;
    say(STDOUT_FILENO, fitting(parts, 1000) + "\n");
    return;
  }
  // A character in the last column would move on to the next line.
  std::string line = fitting(parts, static_cast<std::size_t>(columns_of(STDOUT_FILENO).value_or(80)) - 1);
  if (line == shown_) return;
  say(STDOUT_FILENO, kEraseLine + (style_.output_colour ? kDim + line + kPlain : line));
  shown_ = std::move(line);
}

void Console::clear() { put(STDOUT_FILENO, {}); }

}  // namespace troupe::supervisor
