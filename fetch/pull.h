#pragma once
// A model from a hub into a folder. Until it is complete it lies in FOLDER.part, which another call
// continues; then that folder gets its name. So a folder with the model's name is always a whole model.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "fetch/download.h"
#include "fetch/hub.h"
#include "fetch/progress.h"
#include "fetch/remote_file.h"

namespace troupe::fetch {

struct PullSettings {
  Repository repository;
  std::filesystem::path folder;
  bool all = false;  ///< also what is not needed to serve the model; choose_files()
  DownloadSettings download;
};

/// What a pull would do.
struct PullPlan {
  std::vector<RemoteFile> files;
  std::uint64_t bytes = 0;                  ///< of the files
  std::uint64_t missing_bytes = 0;          ///< that are not on the disk yet
  std::optional<std::uint64_t> free_bytes;  ///< on the disk of the folder; empty: it does not tell
  bool is_there = false;                    ///< the folder is complete already
};

struct Pulled {
  std::size_t files = 0;
  std::uint64_t bytes = 0;
  std::size_t without_sum = 0;  ///< files of which only the size could be checked
  bool was_there = false;       ///< the folder was complete already; nothing was fetched
};

/// Asks the hub for its files and compares them with what is there. Writes nothing. Errors as those of
/// pull().
Result<PullPlan> plan_pull(const PullSettings& settings, const std::atomic<bool>& stop);

/// Fetches what is missing of the plan. Errors leave what has arrived in FOLDER.part, and FOLDER as it was:
/// cancelled after `stop`, unauthorized and not_found as the hub says, too_large for a disk without room,
/// invalid_argument if FOLDER holds other files or another process fetches into it.
Result<Pulled> pull(const PullSettings& settings, const PullPlan& plan,
                    const std::function<void(const Progress&)>& tell, const std::atomic<bool>& stop);
/// Plans and fetches.
Result<Pulled> pull(const PullSettings& settings, const std::function<void(const Progress&)>& tell,
                    const std::atomic<bool>& stop);

}  // namespace troupe::fetch
