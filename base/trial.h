#pragma once
// Finding out whether files can be made in a directory by making one, for `serve --dry-run`: permissions
// alone do not tell of quotas, read-only mounts and servers of files.
#include <filesystem>
#include <vector>

#include "base/status.h"

namespace troupe {

/// Removes at its end what did not exist at its begin of `path` and the directories above it: a file or
/// directory, if it is empty. Others may use these paths meanwhile.
class TrialCleanup {
 public:
  explicit TrialCleanup(const std::filesystem::path& path);
  ~TrialCleanup();
  TrialCleanup(const TrialCleanup&) = delete;
  TrialCleanup& operator=(const TrialCleanup&) = delete;

 private:
  std::vector<std::filesystem::path> missing_;  ///< deepest first
};

/// Makes `directory` and those above it where they are missing, and a file of one byte in it; removes what it
/// made. unavailable, with the directory and the reason, if that fails.
Status try_directory(const std::filesystem::path& directory);

}  // namespace troupe
