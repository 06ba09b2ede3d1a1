#include "base/file_writes.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/owned_fd.h"

namespace troupe {

std::size_t write_all(int fd, std::string_view bytes) {
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = ::write(fd, bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = EIO;
    if (count <= 0) break;
    written += static_cast<std::size_t>(count);
  }
  return written;
}

bool replace_file(const std::string& path, std::string_view text) {
  const std::string beside = path + ".new";
  const OwnedFd fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd || write_all(fd.get(), text) < text.size() || ::fsync(fd.get()) != 0 ||
      ::rename(beside.c_str(), path.c_str()) != 0)
    return false;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  sync_directory(parent.empty() ? "." : parent.string());
  return true;
}

void sync_directory(const std::string& path) {
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());
}

}  // namespace troupe
