#include "model/swap/swap_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "model/bytes_text.h"

namespace troupe::model {
namespace {

constexpr std::size_t kHeaderBytes = 4096;
constexpr char kMagic[] = "troupe swap file 1\n";

Status refuse(const std::string& path, const std::string& why) {
  return invalid("--swap-path is " + path + "; " + why + ".", "swap-path");
}

/// True when the file is empty or one of ours.
bool may_take_over(int fd, const struct stat& state) {
  if (state.st_size == 0) return true;
  std::array<char, sizeof kMagic> head{};
  return ::pread(fd, head.data(), head.size(), 0) == static_cast<ssize_t>(head.size()) &&
         std::memcmp(head.data(), kMagic, head.size()) == 0;
}

/// 0, or the errno. Where the file system cannot allocate ahead, the free space is compared instead.
int allocate(int fd, std::uint64_t bytes) {
  while (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno != EOPNOTSUPP) return errno;
    struct statvfs disk {};
    if (::fstatvfs(fd, &disk) != 0) return errno;
    if (static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize < bytes) return ENOSPC;
    return ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  }
  return 0;
}

}  // namespace

Result<SwapFile> SwapFile::open(const std::string& path, std::uint64_t bytes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return refuse(path, std::string("it cannot be written: ") + std::strerror(errno));
  SwapFile file(fd, {});  // without a path: nothing that is not ours is removed
  struct stat state {};
  if (::fstat(fd, &state) != 0 || !S_ISREG(state.st_mode)) return refuse(path, "it has to be a regular file");
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return refuse(path, "another server uses it");
  if (!may_take_over(fd, state)) {
    return refuse(path, "the file holds other data: name one that does not exist yet");
  }
  file.path_ = path;
  if (::ftruncate(fd, 0) != 0 || ::fchmod(fd, 0600) != 0) {
    return refuse(path, std::string("it cannot be written: ") + std::strerror(errno));
  }
  const int error = allocate(fd, kHeaderBytes + bytes);
  if (error == ENOSPC || error == EFBIG || error == EDQUOT) {
    return refuse(path, "its disk has no room for " + bytes_text(bytes));
  }
  if (error != 0 || ::pwrite(fd, kMagic, sizeof kMagic, 0) != static_cast<ssize_t>(sizeof kMagic)) {
    return refuse(path, std::string("it cannot be written: ") + std::strerror(error != 0 ? error : errno));
  }
  return file;
}

void SwapFile::remove_left(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;
  SwapFile file(fd, {});
  struct stat state {};
  if (::fstat(fd, &state) == 0 && S_ISREG(state.st_mode) && state.st_size > 0 &&
      ::flock(fd, LOCK_EX | LOCK_NB) == 0 && may_take_over(fd, state)) {
    file.path_ = path;  // the destructor removes it
  }
}

SwapFile::~SwapFile() {
  if (fd_ < 0) return;
  struct stat mine {
  }, there{};
  const bool same = !path_.empty() && ::fstat(fd_, &mine) == 0 && ::stat(path_.c_str(), &there) == 0 &&
                    mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
  if (same) ::unlink(path_.c_str());
  ::close(fd_);
}

bool SwapFile::read(std::uint64_t offset, std::byte* to, std::size_t bytes) const {
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, to, bytes, static_cast<off_t>(kHeaderBytes + offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

bool SwapFile::write(std::uint64_t offset, const std::byte* from, std::size_t bytes) const {
  // The header again: if someone truncated the file, it is gone, and the next server would not take the file
  // over.
  if (::pwrite(fd_, kMagic, sizeof kMagic, 0) != static_cast<ssize_t>(sizeof kMagic)) return false;
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, from, bytes, static_cast<off_t>(kHeaderBytes + offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace troupe::model
