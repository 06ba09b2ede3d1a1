#include "model/checkpoint/shard_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace troupe::model {

Result<std::unique_ptr<ShardFile>> ShardFile::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT) return failure(Code::not_found, path.string() + " does not exist.");
    return failure(Code::internal, path.string() + " cannot be opened: " + std::strerror(errno) + ".");
  }
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  if (!known || !S_ISREG(info.st_mode) || info.st_size == 0) {
    ::close(fd);
    return invalid(path.string() +
                   (known && S_ISREG(info.st_mode) ? " is truncated: it is empty." : " is not a file."));
  }
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  return std::unique_ptr<ShardFile>(new ShardFile(path, fd, static_cast<std::uint64_t>(info.st_size)));
}

ShardFile::ShardFile(std::filesystem::path path, int fd, std::uint64_t bytes)
    : path_(std::move(path)), fd_(fd), bytes_(bytes) {}

ShardFile::~ShardFile() { ::close(fd_); }

void ShardFile::read(std::uint64_t offset, void* to, std::size_t bytes) const noexcept {
  auto* at = static_cast<std::byte*>(to);
  const std::uint64_t end = offset + bytes;
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (got > 0) {
      at += got;
      offset += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0 || errno != EINTR) {
      const int error = got == 0 ? 0 : errno;
      std::memset(at, 0, bytes);
      const std::string wanted = "bytes " + std::to_string(offset) + " to " + std::to_string(end);
      if (error != 0) {
        return fail(failure(Code::internal, path_.string() + " cannot be read: " + wanted + ": " +
                                                std::strerror(error) + "."));
      }
      struct stat info {};
      ::fstat(fd_, &info);
      return fail(invalid(path_.string() + " was truncated while it was read: " + wanted +
                          " were wanted; it had " + std::to_string(bytes_) +
                          " bytes when it was opened and has " + std::to_string(info.st_size) + " now."));
    }
  }
}

void ShardFile::fail(Status why) const {
  const std::scoped_lock lock(mutex_);
  if (status_.ok()) status_ = std::move(why);
  failed_.store(true, std::memory_order_release);
}

Status ShardFile::status() const {
  if (!failed_.load(std::memory_order_acquire)) return {};
  const std::scoped_lock lock(mutex_);
  return status_;
}

void ShardFile::will_need(std::uint64_t offset, std::uint64_t bytes) const {
  ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

}  // namespace troupe::model
