#pragma once
// KV blocks of prefill engines on other machines, on their way into a GPU's KV memory: they come into
// page-locked memory of the host, on a thread for each engine, and from there by a copy on a stream beside
// the steps.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/cuda.h"
#include "ipc/wire.h"
#include "model/executor.h"
#include "model/swap/ended_commands.h"
#include "model/swap/kv_slices.h"
#include "model/swap/swap_copier.h"

namespace troupe::model {

/// One thread. It runs peer_in commands alone, and has to be told of the ends of all others, as its own wait
/// for those that they come after.
class CudaRemoteCopies {
 public:
  /// The device, and the KV blocks at kv.shape.data, outlive it.
  CudaRemoteCopies(Cuda& device, const KvPart& kv, const RemotePeers& remotes);

  /// True if blocks of this instance come from another machine.
  bool has(std::uint32_t peer) const { return copier_.has_remote_peer(peer); }
  /// As Executor::attach_remote_peer(), of an instance that it has. Throws CudaError.
  void attach(std::uint32_t peer, FetchBlocks fetch, std::span<std::byte> memory);

  void submit(const wire::CacheCommand& command, std::span<const wire::BlockCopy> copies);
  /// A command that was not submitted here has ended.
  void end(std::uint64_t id) { copier_.end(id); }
  /// True if none of the commands up to `id` is open here.
  bool through(std::uint64_t id) const { return open_ids_.empty() || open_ids_.front() > id; }
  /// Commands whose end was not taken.
  std::size_t open() const { return open_ids_.size(); }
  /// The end of a command, if one has ended.
  bool take_ended(EndedCommand& out);
  /// Forgets all commands. Waits until none runs: for at most a few copies of a block.
  void reset();

 private:
  Cuda& device_;
  std::byte* const kv_;
  std::vector<std::uint64_t> open_ids_;  // ascending
  SwapCopier copier_;
};

}  // namespace troupe::model
