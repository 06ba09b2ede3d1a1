#include "actors/supervisor/child_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace troupe::supervisor {

namespace {

constexpr std::size_t kPiece = 16 * 1024;
// What a pipe holds, and a margin: what is left behind by a child is read at once.
constexpr std::size_t kLeft = 128 * 1024;

}  // namespace

void OutputLines::take(std::string_view bytes, TimePoint now) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    const std::size_t fits = std::min(piece.size(), kLongest - line_.size());
    line_ += piece.substr(0, fits);
    cut_ = cut_ || fits < piece.size();
    if (end == bytes.npos) return;
    end_line(now);
    bytes.remove_prefix(end + 1);
  }
}

void OutputLines::refill(TimePoint now) {
  if (refilled_ != TimePoint{}) {
    const double seconds = std::chrono::duration<double>(now - refilled_).count();
    room_ = std::min(kBurst, room_ + std::max(0.0, seconds) * kPerSecond);
  }
  refilled_ = now;
}

void OutputLines::end_line(TimePoint now) {
  refill(now);
  if (!line_.empty() && room_ < 1) {
    ++dropped_;
  } else if (!line_.empty()) {
    tell_dropped();
    room_ -= 1;
    if (cut_) line_ += "…";
    log_(LogLevel::warning, "output", {kv("text", line_)});
  }
  line_.clear();
  cut_ = false;
}

void OutputLines::tell_dropped() {
  if (dropped_ > 0) log_(LogLevel::warning, "output_dropped", {kv("lines", dropped_)});
  dropped_ = 0;
}

void OutputLines::tick(TimePoint now) {
  if (dropped_ == 0) return;
  refill(now);
  if (room_ >= 1) tell_dropped();
}

void OutputLines::end(TimePoint now) {
  if (!line_.empty()) end_line(now);
  tell_dropped();
}

Result<ipc::Fd> ChildOutput::open() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return failure(Code::internal,
                   std::string("no pipe for the output of a child can be made: ") + std::strerror(errno));
  }
  pipe_.reset(ends[0]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return ipc::Fd(ends[1]);
}

int ChildOutput::fd(TimePoint now) const {
  const bool paused = taken_ >= kBytesPerSecond && now - second_ < std::chrono::seconds(1);
  return paused ? -1 : pipe_.get();
}

bool ChildOutput::read_some(std::size_t most, TimePoint now) {
  char bytes[kPiece];
  const ssize_t size = ::read(pipe_.get(), bytes, std::min(most, sizeof bytes));
  if (size > 0) {
    taken_ += static_cast<std::size_t>(size);
    lines_.take({bytes, static_cast<std::size_t>(size)}, now);
    return true;
  }
  if (size == 0) pipe_.reset();
  return size < 0 && errno == EINTR;
}

void ChildOutput::read(TimePoint now) {
  if (now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    taken_ = 0;
  }
  if (pipe_.valid() && taken_ < kBytesPerSecond) read_some(kBytesPerSecond - taken_, now);
}

void ChildOutput::close(TimePoint now) {
  const std::size_t begin = taken_;
  while (pipe_.valid() && taken_ - begin < kLeft && read_some(kLeft, now)) {
  }
  pipe_.reset();
  lines_.end(now);
}

}  // namespace troupe::supervisor
