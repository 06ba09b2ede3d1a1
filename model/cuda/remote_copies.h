#pragma once
// KV blocks on their way into a GPU's KV memory whose coming takes its time, on a thread for each instance.
// Those of prefill engines on other machines come into page-locked memory of the host, and from there by a
// copy on a stream beside the steps; those of GPUs of this machine whose memory this one cannot read come by
// NCCL, from a pair with each of their ranks.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "gpu/cuda.h"
#include "ipc/wire.h"
#include "model/cuda/nccl_mover.h"
#include "model/executor.h"
#include "model/swap/ended_commands.h"
#include "model/swap/kv_pair.h"
#include "model/swap/kv_slices.h"
#include "model/swap/peer_sources.h"
#include "model/swap/swap_copier.h"

namespace troupe::model {

/// One thread. It runs peer_in commands alone, and has to be told of the ends of all others, as its own wait
/// for those that they come after.
class CudaRemoteCopies {
 public:
  /// The device, and the KV blocks at kv.shape.data, outlive it.
  /// Instances before remotes.first are on this machine.
  CudaRemoteCopies(Cuda& device, const KvPart& kv, const RemotePeers& remotes);
  ~CudaRemoteCopies();

  /// True if blocks of this instance come from another machine, or by NCCL.
  bool has(std::uint32_t peer) const;
  /// As Executor::attach_remote_peer(), of an instance on another machine. Throws CudaError.
  void attach(std::uint32_t peer, FetchBlocks fetch, std::span<std::byte> memory);

  /// As Executor::attach_pair() and detach_peer(), of an instance on this machine.
  Result<bool> attach_pair(std::uint32_t peer, const PeerKvMemory& memory, OwnedFd socket, TellPair tell);
  void detach_pair(std::uint32_t peer, int rank);

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
  bool copy_by_pairs(std::uint32_t peer, std::uint64_t life, std::span<const wire::BlockCopy> copies,
                     const std::atomic<bool>& stop);

  Cuda& device_;
  std::byte* const kv_;
  const std::size_t block_bytes_;
  const RemotePeers remotes_;
  const OpenMovers open_movers_ = std::make_shared<std::atomic<int>>(0);
  mutable std::mutex mutex_;
  PeerSources<KvPairReceiver> pairs_;    // guarded by mutex_
  std::vector<std::uint64_t> open_ids_;  // ascending
  SwapCopier copier_;
};

}  // namespace troupe::model
