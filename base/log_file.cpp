#include "base/log_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// A pipe that polls writable takes PIPE_BUF bytes without blocking.
void write_to_console(std::string_view line) {
  constexpr std::size_t kAtOnce = 4096;
  pollfd console{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&console, 1, 0) != 1 || (console.revents & POLLOUT) == 0) return;
  std::string text(line.substr(0, kAtOnce - 1));
  text += '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

/// One write(2) for each line, so that a line that did not reach the disk is known at once. After a failure the
/// next line opens the file again.
class RotatingFile : public LogSink {
 public:
  RotatingFile(std::string path, const LogOptions& options)
      : path_(std::move(path)),
        stem_(path_.substr(0, path_.rfind(".log"))),
        rotate_bytes_(options.rotate_bytes),
        rotate_files_(std::max(options.rotate_files, 0)),
        console_(options.console) {}
  ~RotatingFile() override { close(); }

  Status open() {
    std::error_code error;
    const fs::path directory = fs::path(path_).parent_path();
    const bool fresh = fs::create_directories(directory, error);
    if (error) {
      return failure(Code::invalid_argument,
                     "cannot make the log directory " + directory.string() + ": " + error.message());
    }
    if (fresh) ::chmod(directory.c_str(), 0750);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    struct stat now {};
    if (fd_ < 0 || ::fstat(fd_, &now) != 0) {
      return failure(Code::invalid_argument,
                     "cannot write the log file " + path_ + ": " + std::strerror(errno));
    }
    size_ = now.st_size;
    return {};
  }

  bool write(std::string_view line) override {
    if (console_) write_to_console(line);
    if (!looked_) close_if_moved();
    line_.assign(line).push_back('\n');
    const auto bytes = static_cast<std::int64_t>(line_.size());
    if (fd_ < 0 && !open().ok()) return false;
    if (size_ > 0 && size_ + bytes > rotate_bytes_ && !rotate().ok()) return false;
    const ssize_t written = ::write(fd_, line_.data(), line_.size());
    if (written == bytes) {
      size_ += bytes;
      return true;
    }
    if (written > 0) {  // removes a line that was written in part
      [[maybe_unused]] const int cut = ::ftruncate(fd_, ::lseek(fd_, 0, SEEK_CUR) - written);
    }
    return false;
  }

  void flush() override { looked_ = false; }

 private:
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  /// Opens the file again if it, or its directory, was removed. Checked once for each batch of lines.
  void close_if_moved() {
    looked_ = true;
    struct stat ours {
    }, named{};
    if (fd_ >= 0 && (::fstat(fd_, &ours) != 0 || ::stat(path_.c_str(), &named) != 0 ||
                     ours.st_ino != named.st_ino || ours.st_dev != named.st_dev)) {
      close();
    }
  }

  std::string name_of(int index) const {
    return index == 0 ? path_ : stem_ + "." + std::to_string(index) + ".log";
  }

  Status rotate() {
    close();
    for (int i = rotate_files_; i > 0; --i) std::rename(name_of(i - 1).c_str(), name_of(i).c_str());
    Status status = open();
    // A file that cannot be renamed is removed, so that the limit on the bytes holds.
    if (status.ok() && size_ > 0 && ::ftruncate(fd_, 0) == 0) size_ = 0;
    return status;
  }

  const std::string path_;
  const std::string stem_;  ///< path_ without ".log"
  const std::int64_t rotate_bytes_;
  const int rotate_files_;
  const bool console_;
  int fd_ = -1;  ///< -1 after a failure, until the next line
  std::int64_t size_ = 0;
  bool looked_ = true;
  std::string line_;
};

}  // namespace

Result<std::shared_ptr<LogSink>> open_log_file(const std::string& path, const LogOptions& options) {
  auto file = std::make_shared<RotatingFile>(path, options);
  if (Status status = file->open(); !status.ok()) return status;
  return std::shared_ptr<LogSink>(std::move(file));
}

}  // namespace troupe
