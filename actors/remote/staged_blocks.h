#pragma once
#include <cstdint>
#include <mutex>
#include <span>

#include "base/ids.h"
#include "base/status.h"
#include "ipc/block_fetches.h"

namespace troupe::remote {

/// KV blocks of a worker whose memory this process cannot map, as it is a GPU's: the worker copies them into
/// memory that both share (actors/worker/block_giver.h). Any thread may call any function.
class StagedBlocks {
 public:
  explicit StagedBlocks(ipc::BlockFetches asked) : asked_(std::move(asked)) {}

  /// A worker has come whose blocks have so many bytes. invalid_argument: there is not room for one.
  Status begin(std::uint64_t block_bytes);

  /// Copies a block of the KV memory that the worker knows by this life. False: the worker has another life,
  /// has not answered within a second, or does not have such a block.
  bool read(std::uint64_t life, BlockId block, std::span<std::byte> into);

 private:
  std::mutex mutex_;
  ipc::BlockFetches asked_;  // guarded by mutex_
};

}  // namespace troupe::remote
