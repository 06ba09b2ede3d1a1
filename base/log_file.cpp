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

#include "base/log_directory.h"
#include "base/owned_fd.h"
#include "base/trial.h"

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

/// One write(2) for each line, so that a line that did not reach the disk is known at once. After a failure
/// the next line opens the file again.
class RotatingFile : public LogSink {
 public:
  RotatingFile(const std::string& path, const LogOptions& options)
      : path_(path),
        root_(path.starts_with(options.dir + "/") ? fs::path(options.dir) : path_.parent_path()),
        rotate_bytes_(options.rotate_bytes),
        rotate_files_(std::max(options.rotate_files, 0)),
        console_(options.console) {}

  Status open() {
    if (Status status = open_log_directory(root_, path_.parent_path(), directory_); !status.ok())
      return status;
    // Without O_NONBLOCK a FIFO in the file's place would be waited for.
    constexpr int kHow = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    fd_.reset(::openat(directory_.get(), path_.filename().c_str(), kHow, 0666));
    const auto refuse = [&](const std::string& why) {
      fd_.reset();
      return failure(Code::invalid_argument, "cannot write the log file " + path_.string() + ": " + why);
    };
    struct stat now {};
    if (!fd_.valid()) return refuse(reason_not_opened(directory_.get(), path_.filename(), errno));
    if (::fstat(fd_.get(), &now) != 0) return refuse(std::strerror(errno));
    if (!S_ISREG(now.st_mode)) return refuse("it is not a regular file");
    size_ = now.st_size;
    return {};
  }

  bool write(std::string_view line) override {
    if (console_) write_to_console(line);
    if (!looked_) close_if_moved();
    line_.assign(line).push_back('\n');
    const auto bytes = static_cast<std::int64_t>(line_.size());
    if (!fd_.valid() && !open().ok()) return false;
    if (size_ > 0 && size_ + bytes > rotate_bytes_ && !rotate().ok()) return false;
    const ssize_t written = ::write(fd_.get(), line_.data(), line_.size());
    if (written == bytes) {
      size_ += bytes;
      return true;
    }
    if (written > 0) {  // removes a line that was written in part
      [[maybe_unused]] const int cut = ::ftruncate(fd_.get(), ::lseek(fd_.get(), 0, SEEK_CUR) - written);
    }
    return false;
  }

  void flush() override { looked_ = false; }

 private:
  /// Opens the file again if it, or its directory, was removed. Checked once for each batch of lines.
  void close_if_moved() {
    looked_ = true;
    struct stat ours {
    }, named{};
    if (fd_.valid() && (::fstat(fd_.get(), &ours) != 0 || ::lstat(path_.c_str(), &named) != 0 ||
                        ours.st_ino != named.st_ino || ours.st_dev != named.st_dev)) {
      fd_.reset();
    }
  }

  std::string name_of(int index) const {
    const std::string own = path_.filename().string();
    return index == 0 ? own : own.substr(0, own.rfind(".log")) + "." + std::to_string(index) + ".log";
  }

  Status rotate() {
    fd_.reset();
    for (int i = rotate_files_; i > 0; --i) {
      ::renameat(directory_.get(), name_of(i - 1).c_str(), directory_.get(), name_of(i).c_str());
    }
    Status status = open();
    // A file that cannot be renamed is removed, so that the limit on the bytes holds.
    if (status.ok() && size_ > 0 && ::ftruncate(fd_.get(), 0) == 0) size_ = 0;
    return status;
  }

  const fs::path path_;
  const fs::path root_;  ///< from here on symbolic links are refused
  const std::int64_t rotate_bytes_;
  const int rotate_files_;
  const bool console_;
  OwnedFd directory_;
  OwnedFd fd_;  ///< not valid after a failure, until the next line
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

Status try_log_file(const std::string& actor, const LogOptions& options) {
  const std::string path = log_path(actor, options);
  const TrialCleanup cleanup(path);
  return open_log_file(path, options).status();
}

}  // namespace troupe
