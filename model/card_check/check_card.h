#pragma once
// Checks the kernels on a GPU by processes that may crash or hang, and finds the kernels to do without.
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

#include "base/owned_fd.h"
#include "base/status.h"
#include "gpu/kernel_ways.h"
#include "model/card_check/check_worker.h"
#include "model/card_check/kept_check.h"

namespace troupe::model {

/// A process that runs checks, and the end of the pipe that its lines come from.
struct CheckProcess {
  pid_t pid = -1;
  OwnedFd lines;
};
using StartChecks = std::function<Result<CheckProcess>(const CheckOrder&)>;

/// Starts `executable check-gpu --worker …` with that environment.
StartChecks checks_by(std::string executable, std::vector<std::string> environment);

/// What becomes of one check, for a person who waits.
struct CheckedOp {
  std::string op, what, way;
  long milliseconds = 0;
  bool right = false;
  std::string reason;  ///< when wrong
  KernelWays avoided;  ///< kernels that were left out already
};

struct CheckLimits {
  std::chrono::milliseconds start{60'000};  ///< until the first check begins: a GPU takes its time
  std::chrono::milliseconds each{15'000};   ///< for one check
  int most_deaths = 8;                      ///< processes that crash or hang before all is given up
};

/// Runs all checks. If an op is wrong and another kernel can take its place, runs all again without the wrong
/// kernels, until every op is right or one has no other kernel; then the result is not usable. A check whose
/// op needs another one that is wrong is not judged. A process that says nothing for too long is killed, and
/// what it ran is wrong. unsupported or unavailable: the GPU cannot be used at all; internal: no process can
/// be started.
Result<CardCheck> check_card(int ordinal, const StartChecks& start, const CheckLimits& limits = {},
                             const std::function<void(const CheckedOp&)>& report = {});

}  // namespace troupe::model
