#pragma once
// Whether a GPU's kernels are checked before a start, and what follows from it.
#include <string>

#include "base/status.h"
#include "config/options.h"
#include "model/card_check/check_card.h"

namespace troupe::model {

struct StartCheckOrder {
  config::CheckGpu when = config::CheckGpu::automatic;
  bool verified = false;   ///< is_verified()
  bool only_look = false;  ///< run nothing: for --dry-run
  int ordinal = 0;
  CardKey key;
  std::string directory;  ///< of kept checks
  StartChecks start;
  CheckLimits limits{};
};

struct StartCheck {
  std::string line;     ///< of the start summary, without a newline
  KernelWays avoided;   ///< kernels to do without
  std::string warning;  ///< empty: none
};

/// A card that is verified is not checked, and one whose check is kept is not checked again, unless `when` is
/// always. A kept check that refused the start does not count. unsupported refuses the start: an op is wrong
/// and no other kernel computes it. A check that cannot be run or kept is a warning, and the start goes on.
Result<StartCheck> check_at_start(const StartCheckOrder& order);

}  // namespace troupe::model
