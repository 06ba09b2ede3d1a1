#include "fetch/pull.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fetch/listing.h"

namespace troupe::fetch {
namespace {

namespace fs = std::filesystem;

/// Holds a lock on a folder while this process writes to it.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool lock() const { return fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0; }
  /// Writes the entries of the folder through to the disk.
  void sync() const { ::fsync(fd_); }

 private:
  int fd_;
};

/// Ok if every file is there with its size.
Status compare(const fs::path& folder, const std::vector<RemoteFile>& files) {
  for (const RemoteFile& file : files) {
    std::error_code error;
    const auto size = fs::file_size(folder / file.path, error);
    if (!error && size == file.size) continue;
    return invalid(
        folder.string() + " is there already, but " + file.path +
            (error ? " is missing in it"
                   : " has " + std::to_string(size) + " bytes, at the hub " + std::to_string(file.size)) +
            ". Nothing was changed: remove the folder, or fetch into another one with --to",
        "to");
  }
  return {};
}

/// Compares what the files still take with what is free. Earlier parts of them are sparse, so their blocks
/// count.
Status check_room(const fs::path& folder, const std::vector<RemoteFile>& files) {
  std::uint64_t needed = 0;
  for (const RemoteFile& file : files) {
    struct stat there = {};
    std::uint64_t taken = 0;
    if (::stat((folder / file.path).c_str(), &there) == 0)
      taken = static_cast<std::uint64_t>(there.st_blocks) * 512;
    needed += file.size - std::min(taken, file.size);
  }
  struct statvfs disk = {};
  if (::statvfs(folder.c_str(), &disk) != 0) return {};
  const std::uint64_t room = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (needed <= room) return {};
  return failure(Code::too_large, folder.string() + ": " + byte_text(needed) +
                                      " are to be fetched, but only " + byte_text(room) + " are free there");
}

Status finish(const fs::path& part, const fs::path& folder) {
  std::error_code error;
  fs::remove_all(part / kCountsFolder, error);
  if (!error) fs::rename(part, folder, error);
  if (error)
    return failure(Code::internal, part.string() + " is complete, but cannot be renamed: " + error.message());
  FolderLock(folder.parent_path()).sync();
  return {};
}

}  // namespace

Result<Pulled> pull(const PullSettings& settings, const std::function<void(const Progress&)>& tell,
                    const std::atomic<bool>& stop) {
  auto listed = list_files(settings.repository, stop);
  if (!listed.ok()) return listed.status();
  const auto files = choose_files(*std::move(listed), settings.all);
  if (!files.ok()) return files.status();
  Pulled out;
  for (const RemoteFile& file : *files) {
    ++out.files;
    out.bytes += file.size;
    if (file.sum.kind == SumKind::none) ++out.without_sum;
  }
  std::error_code error;
  if (fs::exists(settings.folder, error)) {
    if (Status s = compare(settings.folder, *files); !s.ok()) return s;
    out.was_there = true;
    return out;
  }
  const fs::path part = settings.folder.string() + ".part";
  fs::create_directories(part, error);
  if (error) return failure(Code::unavailable, part.string() + " cannot be created: " + error.message());
  const FolderLock lock(part);
  if (!lock.lock()) {
    return invalid(part.string() + (errno == EWOULDBLOCK
                                        ? ": another process is fetching this model already"
                                        : std::string(" cannot be locked: ") + std::strerror(errno)));
  }
  if (Status s = check_room(part, *files); !s.ok()) return s;
  Download download(settings.repository, part, settings.download, tell, stop);
  if (Status s = download.open(*files); !s.ok()) return s;
  if (Status s = download.run(); !s.ok()) return s;
  if (Status s = finish(part, settings.folder); !s.ok()) return s;
  return out;
}

}  // namespace troupe::fetch
