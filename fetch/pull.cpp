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

fs::path part_of(const fs::path& folder) { return folder.string() + ".part"; }

/// Bytes of the files that are not in the folder yet. Earlier parts of them are sparse, so their blocks
/// count.
std::uint64_t missing_bytes(const fs::path& folder, const std::vector<RemoteFile>& files) {
  std::uint64_t missing = 0;
  for (const RemoteFile& file : files) {
    struct stat there = {};
    std::uint64_t taken = 0;
    if (::stat((folder / file.path).c_str(), &there) == 0)
      taken = static_cast<std::uint64_t>(there.st_blocks) * 512;
    missing += file.size - std::min(taken, file.size);
  }
  return missing;
}

/// Of the disk that has the nearest directory to `folder` that exists.
std::optional<std::uint64_t> free_bytes(const fs::path& folder) {
  std::error_code error;
  fs::path nearest = fs::absolute(folder, error);
  while (nearest.has_relative_path() && !fs::exists(nearest, error)) nearest = nearest.parent_path();
  struct statvfs disk = {};
  if (::statvfs(nearest.c_str(), &disk) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
}

Status check_room(const fs::path& folder, const std::vector<RemoteFile>& files) {
  const std::uint64_t needed = missing_bytes(folder, files);
  const std::optional<std::uint64_t> room = free_bytes(folder);
  if (!room || needed <= *room) return {};
  return failure(Code::too_large, folder.string() + ": " + byte_text(needed) +
                                      " are to be fetched, but only " + byte_text(*room) + " are free there");
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

Result<PullPlan> plan_pull(const PullSettings& settings, const std::atomic<bool>& stop) {
  auto listed = list_files(settings.repository, stop);
  if (!listed.ok()) return listed.status();
  auto files = choose_files(*std::move(listed), settings.all);
  if (!files.ok()) return files.status();
  PullPlan plan;
  plan.files = *std::move(files);
  for (const RemoteFile& file : plan.files) plan.bytes += file.size;
  std::error_code error;
  plan.is_there = fs::exists(settings.folder, error);
  if (plan.is_there) {
    if (Status s = compare(settings.folder, plan.files); !s.ok()) return s;
    return plan;
  }
  plan.missing_bytes = missing_bytes(part_of(settings.folder), plan.files);
  plan.free_bytes = free_bytes(settings.folder);
  return plan;
}

Result<Pulled> pull(const PullSettings& settings, const PullPlan& plan,
                    const std::function<void(const Progress&)>& tell, const std::atomic<bool>& stop) {
  Pulled out{.files = plan.files.size(), .bytes = plan.bytes, .was_there = plan.is_there};
  for (const RemoteFile& file : plan.files) out.without_sum += file.sum.kind == SumKind::none ? 1 : 0;
  if (plan.is_there) return out;
  const fs::path part = part_of(settings.folder);
  std::error_code error;
  fs::create_directories(part, error);
  if (error) return failure(Code::unavailable, part.string() + " cannot be created: " + error.message());
  const FolderLock lock(part);
  if (!lock.lock()) {
    return invalid(part.string() + (errno == EWOULDBLOCK
                                        ? ": another process is fetching this model already"
                                        : std::string(" cannot be locked: ") + std::strerror(errno)));
  }
  if (Status s = check_room(part, plan.files); !s.ok()) return s;
  Download download(settings.repository, part, settings.download, tell, stop);
  if (Status s = download.open(plan.files); !s.ok()) return s;
  if (Status s = download.run(); !s.ok()) return s;
  if (Status s = finish(part, settings.folder); !s.ok()) return s;
  return out;
}

Result<Pulled> pull(const PullSettings& settings, const std::function<void(const Progress&)>& tell,
                    const std::atomic<bool>& stop) {
  const auto plan = plan_pull(settings, stop);
  return plan.ok() ? pull(settings, *plan, tell, stop) : plan.status();
}

}  // namespace troupe::fetch
