#pragma once
// What `troupe pull` and `troupe serve --download` share: a fetch with progress on standard error that a
// signal stops.
#include <string>

#include "base/status.h"
#include "config/options.h"
#include "config/parse.h"
#include "fetch/pull.h"

namespace troupe::cli {

struct PullOrder {
  std::string name;    ///< ORG/NAME
  std::string folder;  ///< empty: `cache`/NAME
  std::string cache;
  config::ModelSource source = config::ModelSource::aistudio;
  std::string revision;
  bool all = false;
  bool dry_run = false;  ///< says what would be fetched, and fetches nothing
  fetch::DownloadSettings download;
};

struct PullReport {
  fetch::Pulled pulled;
  std::string folder;
  double seconds = 0;
  bool dry_run = false;
};

/// Says the size, the free disk and what `troupe fit` says of this machine, then fetches the model; endpoints
/// and tokens come from `environment`. SIGINT, SIGTERM and SIGHUP stop it with the status cancelled and stay
/// blocked from ending the process meanwhile.
Result<PullReport> pull_model(const PullOrder& order, const config::Environment& environment);

/// "DIR: 12 files, 20.4 GB in 66 s (0.31 GB/s)", with a remark on files without a checksum.
std::string describe(const PullReport& report);

/// The signal that stopped the last pull_model(), or 0.
int stopping_signal();

}  // namespace troupe::cli
