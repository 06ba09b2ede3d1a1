#include "base/log_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
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

/// Closes the descriptor at its end.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() { reset(); }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

/// Why `name` in the directory `at` could not be opened; `error` is errno.
std::string reason_of(int at, const std::string& name, int error) {
  struct stat there {};
  if (::fstatat(at, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(there.st_mode)) {
    return "it is a symbolic link, which logs do not follow; name its target instead";
  }
  return std::strerror(error);
}

/// Opens a directory, and makes it and those above it where they are missing. From `root` on none of them may be a
/// symbolic link, with which another user could send the lines to a place of their choice; what leads to `root` is the
/// choice of whoever named it.
Status open_directory(const fs::path& root, const fs::path& directory, OwnedFd& opened) {
  const auto refuse = [&](const std::string& why) {
    return failure(Code::invalid_argument, "cannot make the log directory " + directory.string() + ": " + why);
  };
  const auto plain = [](const fs::path& path) {  // without dots and without a slash at its end
    const fs::path normal = fs::absolute(path).lexically_normal();
    return normal.has_filename() ? normal : normal.parent_path();
  };
  const fs::path top = plain(root);
  std::error_code error;
  fs::create_directories(top.parent_path(), error);
  if (error) return refuse(error.message());
  constexpr int kHow = O_PATH | O_DIRECTORY | O_CLOEXEC;
  opened.reset(::open(top.parent_path().c_str(), kHow));
  if (!opened.valid()) return refuse(std::strerror(errno));
  for (const fs::path& name : top.filename() / plain(directory).lexically_relative(top)) {
    if (name.empty() || name == ".") continue;
    if (::mkdirat(opened.get(), name.c_str(), 0750) != 0 && errno != EEXIST) return refuse(std::strerror(errno));
    const int next = ::openat(opened.get(), name.c_str(), kHow | O_NOFOLLOW);
    if (next < 0) return refuse(name.string() + ": " + reason_of(opened.get(), name, errno));
    opened.reset(next);
  }
  return {};
}

/// One write(2) for each line, so that a line that did not reach the disk is known at once. After a failure the
/// next line opens the file again.
class RotatingFile : public LogSink {
 public:
  RotatingFile(const std::string& path, const LogOptions& options)
      : path_(path),
        root_(path.starts_with(options.dir + "/") ? fs::path(options.dir) : path_.parent_path()),
        rotate_bytes_(options.rotate_bytes),
        rotate_files_(std::max(options.rotate_files, 0)),
        console_(options.console) {}

  Status open() {
    if (Status status = open_directory(root_, path_.parent_path(), directory_); !status.ok()) return status;
    // Without O_NONBLOCK a FIFO in the file's place would be waited for.
    constexpr int kHow = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    fd_.reset(::openat(directory_.get(), path_.filename().c_str(), kHow, 0666));
    const auto refuse = [&](const std::string& why) {
      fd_.reset();
      return failure(Code::invalid_argument, "cannot write the log file " + path_.string() + ": " + why);
    };
    struct stat now {};
    if (!fd_.valid()) return refuse(reason_of(directory_.get(), path_.filename(), errno));
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

namespace {

constexpr const char* kLock = ".server";  // of a directory of logs

std::string folder_of(const std::string& dir, int port) { return dir + "/port-" + std::to_string(port); }

}  // namespace

Result<LogDirectory> LogDirectory::claim(const std::string& dir, int port) {
  for (const std::string& path : {dir, folder_of(dir, port)}) {
    OwnedFd directory;
    if (Status status = open_directory(dir, path, directory); !status.ok()) return status;
    constexpr int kHow = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    const int lock = ::openat(directory.get(), kLock, kHow, 0640);
    if (lock < 0) {
      return failure(Code::invalid_argument, "cannot write into the log directory " + path + ": " +
                                                 reason_of(directory.get(), kLock, errno));
    }
    LogDirectory claimed(path, lock);
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return claimed;  // or no locks on this disk
  }
  return failure(Code::unavailable, "the log directory " + folder_of(dir, port) + " is another server's");
}

std::string LogDirectory::look(const std::string& dir, int port) {
  const OwnedFd lock(::open((fs::path(dir) / kLock).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const bool taken = lock.valid() && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return taken ? folder_of(dir, port) : dir;
}

LogDirectory::~LogDirectory() {
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace troupe
