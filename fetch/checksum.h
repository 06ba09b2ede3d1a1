#pragma once
#include <atomic>

#include "base/status.h"
#include "fetch/remote_file.h"

namespace troupe::fetch {

/// Reads the first file.size bytes of `fd` and compares their sum with file.sum; a file without a sum passes.
/// Errors: invalid_argument if the sums differ, cancelled if `stop` became true, internal if reading fails.
Status verify_sum(int fd, const RemoteFile& file, const std::atomic<bool>& stop);

}  // namespace troupe::fetch
