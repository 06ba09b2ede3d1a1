#include "cli/progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/clock.h"

namespace troupe::cli {
namespace {

constexpr double kLineSeconds = 10;

double seconds_now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

std::size_t columns() {
  winsize size = {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1U : 79U;
}

}  // namespace

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) != 0), shown_s_(seconds_now()) {}

ProgressLine::~ProgressLine() {
  if (terminal_ && width_ > 0) std::fputc('\n', stderr);
}

void ProgressLine::show(const std::string& text) {
  if (terminal_) {
    const std::string cut = text.substr(0, columns());
    const std::string blanks(width_ > cut.size() ? width_ - cut.size() : 0, ' ');
    std::fprintf(stderr, "\r%s%s", cut.c_str(), blanks.c_str());
    std::fflush(stderr);
    width_ = std::max(cut.size(), blanks.size() + cut.size());
    return;
  }
  if (seconds_now() - shown_s_ < kLineSeconds) return;
  shown_s_ = seconds_now();
  std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace troupe::cli
