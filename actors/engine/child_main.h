#pragma once
// What every child process does first and last: read descriptors and options, and report a failure to the
// supervisor before it exits.
#include <functional>
#include <string>
#include <vector>

#include "actors/supervisor/child_arguments.h"
#include "actors/supervisor/control.h"
#include "base/status.h"
#include "config/options.h"

namespace troupe {

using ChildBody =
    std::function<Status(const supervisor::ChildArguments&, supervisor::Control&, const config::Options&)>;

/// Runs `body` and returns the exit code: 0, 1 after a failure (which the supervisor was told as "fatal"),
/// 2 when the process was not started by a supervisor.
int run_child(const char* name, const std::vector<std::string>& words, const ChildBody& body);

/// The supervisor has gone, or asks this process to end.
bool asked_to_end(const supervisor::Packet& packet);

/// Tells the supervisor which part of this process stands still, whenever that changes.
class SilenceReport {
 public:
  explicit SilenceReport(const supervisor::Control& control) : control_(control) {}
  /// Empty: none does.
  void tell(std::string part);

 private:
  const supervisor::Control& control_;
  std::string told_;
};

}  // namespace troupe
