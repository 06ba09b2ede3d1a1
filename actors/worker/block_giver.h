#pragma once
#include <cstdint>
#include <stop_token>
#include <thread>

#include "ipc/block_fetches.h"
#include "model/executor.h"

namespace troupe {

/// Gives KV blocks of a worker, whose memory others cannot map, to the relay beside it
/// (actors/remote/kv_server.h): copies those that the relay asks for into the memory that both share, on a
/// thread of its own. Blocks of another life than the worker's are refused.
class BlockGiver {
 public:
  BlockGiver(ipc::BlockFetches asked, std::uint64_t life, ReadBlock read);
  ~BlockGiver();
  BlockGiver(const BlockGiver&) = delete;
  BlockGiver& operator=(const BlockGiver&) = delete;

 private:
  void run(const std::stop_token& stop);

  ipc::BlockFetches asked_;
  const std::uint64_t life_;
  ReadBlock read_;  // ends before the memory that it reads into
  std::jthread thread_;
};

}  // namespace troupe
