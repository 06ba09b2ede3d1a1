#pragma once
// The directories of logs: how they are made, and who may write to them. Two servers that append to the same
// files would mix their lines and rotate each other's files away, so a server locks its directories.
#include <filesystem>
#include <string>
#include <vector>

#include "base/log_options.h"
#include "base/owned_fd.h"
#include "base/status.h"

namespace troupe {

/// Opens a directory (O_PATH), and makes it and those above it where they are missing. From `root` on none of
/// them may be a symbolic link, with which another user could send the lines to a place of their choice; what
/// leads to `root` is the choice of whoever named it.
Status open_log_directory(const std::filesystem::path& root, const std::filesystem::path& directory,
                          OwnedFd& opened);

/// Why `name` in the directory `at` could not be opened; `error` is errno.
std::string reason_not_opened(int at, const std::string& name, int error);

/// The locks of a server on its log directories, held while the object exists and the process lives.
class LogDirectoryLocks {
 public:
  LogDirectoryLocks() = default;

  /// Locks options.dir and the directories of options.actor_dirs. One that another process holds is replaced
  /// in `options` by DIR/port-N, after the server's HTTP port; if that one is held too, by the first of
  /// DIR/port-N-2, DIR/port-N-3 … that is free. A directory that cannot be made or locked stays as it is,
  /// without a lock: opening a log there says what is wrong.
  static LogDirectoryLocks take(LogOptions& options, int port);

  /// The directory that take() would choose for `directory` now. Makes and locks nothing.
  static std::string look(const std::string& directory, int port);

 private:
  std::vector<OwnedFd> locks_;
};

}  // namespace troupe
