#pragma once
// Copies blocks between a CPU worker's KV memory and its swap store, and out of other instances' KV memory,
// on a thread of its own beside the steps.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ipc/wire.h"
#include "model/result_writer.h"
#include "model/sealed_memory.h"
#include "model/swap/ended_commands.h"
#include "model/swap/peer_sources.h"
#include "model/swap/swap_store.h"

namespace troupe::model {

/// All calls from one thread, which also runs the commands that only copy within the KV memory and reports
/// them by end(). Commands wait for those named in `after`; copies in come before copies out.
class SwapCopier {
 public:
  /// Starts the thread, which has the caller's affinity: make it before the caller is pinned. Null: there is
  /// no swap space.
  explicit SwapCopier(std::unique_ptr<SwapStore> store);
  ~SwapCopier();
  SwapCopier(const SwapCopier&) = delete;
  SwapCopier& operator=(const SwapCopier&) = delete;

  /// The KV blocks lie at shape.data, one after the other. Before anything else.
  void set_memory(const KvPart& kv);

  /// As Executor::attach_peer() and detach_peer().
  Status attach(std::uint32_t peer, const PeerKvMemory& memory);
  void detach(std::uint32_t peer, int rank);

  void submit(const wire::CacheCommand& command, std::span<const wire::BlockCopy> copies);
  /// A command that was not submitted here has ended.
  void end(std::uint64_t id);
  /// True when all commands up to `id` have ended.
  bool through(std::uint64_t id) const;
  /// Submitted commands whose end was not taken.
  std::size_t open() const { return open_; }

  /// An end that was not taken yet. False when there is none before the deadline.
  bool take_ended(EndedCommand& out, TimePoint deadline = {});

  /// Forgets all commands, after the one that runs.
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

  void run();
  std::deque<Job>::iterator next();
  using Peers = PeerSources<SealedMemory>;
  bool copy(const Job& job, std::span<const Peers::Source> sources) const;

  const std::unique_ptr<SwapStore> store_;  // used by the thread
  std::byte* kv_ = nullptr;
  std::size_t block_bytes_ = 0;
  std::size_t open_ = 0;

  mutable std::mutex mutex_;  // guards the following
  std::condition_variable work_, progress_;
  Peers peers_{{}};
  std::deque<Job> jobs_;
  std::deque<EndedCommand> reports_;
  EndedCommands ended_;
  bool running_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace troupe::model
