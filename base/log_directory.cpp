#include "base/log_directory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <optional>

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = ".lock";
constexpr int kMostServers = 1000;  // in one directory, with the same port

/// Without dots and without a slash at its end.
fs::path plain_path(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

std::string folder_of(const std::string& directory, int port, int number) {
  return directory + "/port-" + std::to_string(port) + (number == 1 ? "" : "-" + std::to_string(number));
}

struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// The lock on a directory; an invalid descriptor if it cannot be locked at all, nothing if another process
/// holds it.
std::optional<OwnedFd> lock_directory(const std::string& path) {
  OwnedFd directory;
  if (!open_log_directory(path, path, directory).ok()) return OwnedFd();
  OwnedFd file(
      ::openat(directory.get(), kLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640));
  if (!file.valid()) return file;
  struct flock whole = whole_file();
  if (::fcntl(file.get(), F_OFD_SETLK, &whole) == 0) return file;
  if (errno == EAGAIN || errno == EACCES) return std::nullopt;
  return OwnedFd();
}

}  // namespace

std::string reason_not_opened(int at, const std::string& name, int error) {
  struct stat there {};
  if (::fstatat(at, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(there.st_mode)) {
    return "it is a symbolic link, which logs do not follow; name its target instead";
  }
  return std::strerror(error);
}

Status open_log_directory(const fs::path& root, const fs::path& directory, OwnedFd& opened) {
  const auto refuse = [&](const std::string& why) {
    return failure(Code::invalid_argument,
                   "cannot make the log directory " + directory.string() + ": " + why);
  };
  const fs::path top = plain_path(root);
  std::error_code error;
  fs::create_directories(top.parent_path(), error);
  if (error) return refuse(error.message());
  constexpr int kHow = O_PATH | O_DIRECTORY | O_CLOEXEC;
  opened.reset(::open(top.parent_path().c_str(), kHow));
  if (!opened.valid()) return refuse(std::strerror(errno));
  for (const fs::path& name : top.filename() / plain_path(directory).lexically_relative(top)) {
    if (name.empty() || name == ".") continue;
    if (::mkdirat(opened.get(), name.c_str(), 0750) != 0 && errno != EEXIST)
      return refuse(std::strerror(errno));
    const int next = ::openat(opened.get(), name.c_str(), kHow | O_NOFOLLOW);
    if (next < 0) return refuse(name.string() + ": " + reason_not_opened(opened.get(), name, errno));
    opened.reset(next);
  }
  return {};
}

std::string LogDirectoryLocks::look(const std::string& directory, int port) {
  const OwnedFd file(
      ::open((fs::path(directory) / kLockName).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct flock whole = whole_file();
  const bool taken = file.valid() && ::fcntl(file.get(), F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
  return taken ? folder_of(directory, port, 1) : directory;
}

LogDirectoryLocks LogDirectoryLocks::take(LogOptions& options, int port) {
  LogDirectoryLocks taken;
  std::map<fs::path, std::string> chosen;  // several actors may share a directory
  const auto choose = [&](std::string& directory) {
    const auto [place, is_new] = chosen.try_emplace(plain_path(directory), directory);
    for (int number = 1; is_new && number <= kMostServers; ++number) {
      const std::string path = number == 1 ? directory : folder_of(directory, port, number - 1);
      auto lock = lock_directory(path);
      if (!lock) continue;
      if (lock->valid() || number == 1) place->second = path;
      taken.locks_.push_back(std::move(*lock));
      break;
    }
    directory = place->second;
  };
  choose(options.dir);
  for (auto& [actor, directory] : options.actor_dirs) choose(directory);
  return taken;
}

}  // namespace troupe
