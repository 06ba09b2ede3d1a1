#pragma once
// Messages to METRICS about the processes of the server.
#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// A process of this server, as the supervisor sees it.
struct ProcessReport {
  std::string name;  ///< supervisor, engine, worker-0…
  std::int64_t pid = 0;
  std::int32_t restarts = 0;
};

/// All of them, whenever one has changed; from the engine's main thread to METRICS.
struct ProcessReports {
  std::vector<ProcessReport> processes;
};

}  // namespace troupe
