#include "http/batch/line_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file_writes.h"

namespace troupe::http {
namespace {

constexpr std::size_t kPieceBytes = 256 << 10;

Status file_failure(const std::string& what) {
  return failure(Code::unavailable, what + ": " + std::strerror(errno));
}

}  // namespace

Result<LineReader> LineReader::open(const std::string& path, std::size_t most_bytes) {
  OwnedFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return file_failure("the file of a batch cannot be opened");
  return LineReader(std::move(file), most_bytes);
}

/// False at the end of the file and on failure.
bool LineReader::fill() {
  buffer_.erase(0, std::exchange(used_, 0));
  const std::size_t before = buffer_.size();
  buffer_.resize(before + kPieceBytes);
  ssize_t n = 0;
  do {
    n = ::read(file_.get(), buffer_.data() + before, kPieceBytes);
  } while (n < 0 && errno == EINTR);
  buffer_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  if (n < 0) status_ = file_failure("the file of a batch cannot be read");
  return n > 0;
}

/// False when there is no line any more. Of one that is too long the rest is read and dropped.
bool LineReader::read_line(Line& line) {
  line = {};
  bool any = false;
  for (;;) {
    const std::string_view left = std::string_view(buffer_).substr(used_);
    const std::size_t end = left.find('\n');
    const std::string_view part = left.substr(0, end);
    any = any || !left.empty();
    const std::size_t room = most_bytes_ - line.text.size();
    line.too_long |= part.size() > room;
    line.text.append(part.substr(0, room));
    used_ += part.size() + (end == left.npos ? 0 : 1);
    if (end != left.npos || !fill()) break;
  }
  if (!any || !status_.ok()) return false;
  line.number = ++lines_;
  if (line.text.ends_with('\r')) line.text.pop_back();
  return true;
}

std::optional<LineReader::Line> LineReader::next() {
  Line line;
  while (status_.ok() && read_line(line)) {
    if (line.text.find_first_not_of(" \t") != std::string::npos) return line;
  }
  return std::nullopt;
}

Result<LineAppender> LineAppender::open(const std::string& path,
                                        const std::function<bool(std::string_view line)>& whole) {
  OwnedFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return file_failure("a file of results cannot be opened");
  std::string buffer;
  std::uint64_t good = 0;
  for (bool trusted = true; trusted;) {
    const std::size_t before = buffer.size();
    buffer.resize(before + kPieceBytes);
    const ssize_t n = ::read(file.get(), buffer.data() + before, kPieceBytes);
    if (n < 0 && errno != EINTR) return file_failure("a file of results cannot be read");
    buffer.resize(before + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) break;
    std::size_t begin = 0;
    for (std::size_t end = 0; trusted && (end = buffer.find('\n', begin)) != buffer.npos; begin = end + 1) {
      trusted = whole(std::string_view(buffer).substr(begin, end - begin));
      if (trusted) good += end + 1 - begin;
    }
    buffer.erase(0, begin);
  }
  const auto length = static_cast<off_t>(good);
  if (::ftruncate(file.get(), length) != 0 || ::lseek(file.get(), length, SEEK_SET) != length)
    return file_failure("a file of results cannot be written");
  return LineAppender(std::move(file), good);
}

Status LineAppender::sync() {
  if (pending_.empty()) return {};
  if (write_all(file_.get(), pending_) < pending_.size() || ::fdatasync(file_.get()) != 0) {
    const Status status = file_failure("results cannot be written");
    // They are written again later: now half a line would be joined with that, and whole lines be there
    // twice.
    if (::ftruncate(file_.get(), static_cast<off_t>(bytes_)) == 0)
      ::lseek(file_.get(), static_cast<off_t>(bytes_), SEEK_SET);
    return status;
  }
  bytes_ += pending_.size();
  pending_.clear();
  return {};
}

}  // namespace troupe::http
