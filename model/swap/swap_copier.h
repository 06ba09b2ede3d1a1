#pragma once
// Copies blocks between a CPU worker's KV memory and its swap store, and out of other instances' KV memory,
// on threads beside the steps: one, and one for each instance whose copies may take their time, as those on
// other machines do.
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ipc/wire.h"
#include "model/executor.h"
#include "model/result_writer.h"
#include "model/sealed_memory.h"
#include "model/swap/ended_commands.h"
#include "model/swap/peer_sources.h"
#include "model/swap/swap_store.h"

namespace troupe::model {

/// Which of the other instances are on other machines, or are copied from like those: `count` from index
/// `first` on.
struct RemotePeers {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// Puts the bytes of a block into the KV memory. False: it could not. Called by one thread.
using PutBlock = std::function<bool(BlockId to, std::span<const std::byte> block)>;

/// Fills blocks of the KV memory with those of another instance, whose memory has this life. False when one
/// cannot be had, or once `stop` is true. Waits for a bounded time. Called by one thread.
using CopyBlocks = std::function<bool(std::uint64_t life, std::span<const wire::BlockCopy> copies,
                                      const std::atomic<bool>& stop)>;

/// All calls from one thread, which also runs the commands that only copy within the KV memory and reports
/// them by end(). Commands wait for those named in `after`; copies in come before copies out.
class SwapCopier {
 public:
  /// Starts the threads, which have the caller's affinity: make it before the caller is pinned. Null: there
  /// is no swap space.
  explicit SwapCopier(std::unique_ptr<SwapStore> store, const RemotePeers& remotes = {});
  ~SwapCopier();
  SwapCopier(const SwapCopier&) = delete;
  SwapCopier& operator=(const SwapCopier&) = delete;

  /// The KV blocks lie at shape.data, one after the other. Before anything else.
  void set_memory(const KvPart& kv);

  /// As Executor::attach_peer() and detach_peer().
  Status attach(std::uint32_t peer, const PeerKvMemory& memory);
  void detach(std::uint32_t peer, int rank);

  /// Blocks of an instance on another machine come by `fetch`, and go into the KV memory by `put`; without
  /// it that is memory of the host. Before the first submit(). False: the instance is none of the
  /// constructor's.
  bool set_remote_peer(std::uint32_t peer, FetchBlocks fetch, PutBlock put = {});
  /// Likewise, by any other way.
  bool set_remote_copies(std::uint32_t peer, CopyBlocks copy);
  bool has_remote_peer(std::uint32_t peer) const {
    return peer >= remotes_.first && peer - remotes_.first < remotes_.count;
  }

  void submit(const wire::CacheCommand& command, std::span<const wire::BlockCopy> copies);
  /// A command that was not submitted here has ended.
  void end(std::uint64_t id);
  /// True when all commands up to `id` have ended.
  bool through(std::uint64_t id) const;
  /// Submitted commands whose end was not taken.
  std::size_t open() const { return open_; }

  /// An end that was not taken yet. False when there is none before the deadline.
  bool take_ended(EndedCommand& out, TimePoint deadline = {});

  /// Forgets all commands, after those that run.
  void reset();

 private:
  struct Job {
    std::uint64_t id = 0;
    std::uint64_t after = 0;
    wire::CacheOp op = wire::CacheOp::swap_in;
    std::uint32_t peer = 0;  // of peer_in, as the next
    std::uint64_t memory = 0;
    std::vector<wire::BlockCopy> copies;
  };

  using Peers = PeerSources<const SealedMemory>;
  void run(std::size_t lane);
  std::size_t lane_of(const Job& job) const;
  std::deque<Job>::iterator next(std::size_t lane);
  bool copy(const Job& job, std::span<const Peers::Source> sources) const;
  std::byte* kv(BlockId block) const { return kv_ + static_cast<std::size_t>(block) * block_bytes_; }

  const std::unique_ptr<SwapStore> store_;  // used by the thread of lane 0
  const RemotePeers remotes_;
  std::byte* kv_ = nullptr;
  std::size_t block_bytes_ = 0;
  std::size_t open_ = 0;

  mutable std::mutex mutex_;  // guards the following
  std::condition_variable work_, progress_;
  Peers peers_{{}};
  std::vector<CopyBlocks> remote_copies_;  // by remote peer
  std::deque<Job> jobs_;
  std::deque<EndedCommand> reports_;
  EndedCommands ended_;
  int running_ = 0;  // jobs
  bool stop_ = false;
  std::atomic<bool> stop_fetches_{false};
  // By lane: what reads and writes this machine's memory alone, then each remote peer's.
  std::vector<std::thread> threads_;
};

}  // namespace troupe::model
