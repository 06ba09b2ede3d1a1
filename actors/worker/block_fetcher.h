#pragma once
#include "ipc/block_fetches.h"
#include "model/executor.h"

namespace troupe {

/// A worker's way to the KV blocks of an instance on another machine: through this memory to the relay that
/// is connected to it. A copy that makes no progress for 5 s fails, though the relay fails it sooner.
FetchBlocks fetch_through(ipc::BlockFetches fetches);

}  // namespace troupe
