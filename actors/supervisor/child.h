#pragma once
// What the supervisor knows of one child across its lives: the process of now, what it said of itself, when
// the next one starts.
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/child_arguments.h"
#include "actors/supervisor/child_process.h"
#include "actors/supervisor/control.h"
#include "base/clock.h"
#include "ipc/segment.h"

namespace troupe::supervisor {

struct Child {
  // Constant.
  std::string name;  ///< "engine", "worker-0"
  ipc::Side side{};
  int rank = 0;                    ///< of a worker
  std::vector<std::string> words;  ///< the subcommand, behind what the set-up puts before it
  ChildArguments arguments;        ///< all but the control channel, which is new in every life

  // This life.
  ChildProcess process;
  Control control;
  TimePoint started;
  bool ready = false;
  bool asked = false;              ///< to end
  std::string state = "starting";  ///< starting, loading, ready, draining, stopping, restarting
  std::string fatal;               ///< its last word, if it had one
  std::string verdict;             ///< why the supervisor killed it, if it did
  std::int64_t last_beat = 0;      ///< its newest sign of life
  Duration silence{};              ///< for how long that has been the newest

  // All lives.
  bool ever_ready = false;
  int deaths = 0;
  int restarts = 0;
  std::optional<TimePoint> restart_at;  ///< set while there is no process and there shall be one

  bool running() const { return process.running(); }

  /// Starts the next life. Afterwards running(), unless a Status says why not.
  Status start(const std::string& executable, TimePoint now);

  /// Waits for the ended process and says how it ended: name, exit, its last word or the verdict.
  std::string bury();

  ChildExit last_exit;  ///< of the process that was buried last
};

}  // namespace troupe::supervisor
