#pragma once
// A model from a hub into a folder. Until it is complete it lies in FOLDER.part, which another call
// continues; then that folder gets its name. So a folder with the model's name is always a whole model.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "fetch/download.h"
#include "fetch/hub.h"
#include "fetch/progress.h"

namespace troupe::fetch {

struct PullSettings {
  Repository repository;
  std::filesystem::path folder;
  bool all = false;  ///< also what is not needed to serve the model; choose_files()
  DownloadSettings download;
};

struct Pulled {
  std::size_t files = 0;
  std::uint64_t bytes = 0;
  std::size_t without_sum = 0;  ///< files of which only the size could be checked
  bool was_there = false;       ///< the folder was complete already; nothing was fetched
};

/// Fetches what is missing. Errors leave what has arrived in FOLDER.part, and FOLDER as it was: cancelled
/// after `stop`, unauthorized and not_found as the hub says, too_large for a disk without room,
/// invalid_argument if FOLDER holds other files or another process fetches into it.
Result<Pulled> pull(const PullSettings& settings, const std::function<void(const Progress&)>& tell,
                    const std::atomic<bool>& stop);

}  // namespace troupe::fetch
