#pragma once
// The swap space of a GPU, which is pinned host memory, and the KV memory of other instances' GPUs. Copies
// out to the one, in from it and in from the others run on a stream each, so that steps go on meanwhile.
//
// Commands of one kind run in the order of arrival; everything else is ordered by events, and only as
// far as `after` and StepPlan::after_cache_command ask for it.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "gpu/cuda_copy_stream.h"
#include "gpu/cuda_event.h"
#include "gpu/pinned.h"
#include "gpu/reserved_memory.h"
#include "ipc/wire.h"
#include "kernels/batch.h"
#include "model/executor.h"
#include "model/result_writer.h"
#include "model/swap/peer_sources.h"

namespace troupe::model {

/// One thread. All functions but the destructor throw CudaError.
class CudaSwap {
 public:
  static constexpr std::size_t kMaxOpen = 256;

  /// The KV blocks at kv.shape.data outlive it. `blocks` may be 0.
  CudaSwap(Cuda& device, const KvPart& kv, std::int32_t blocks);

  /// As Executor::attach_peer(). unavailable: the GPU cannot read the memory.
  Status attach(Cuda& device, std::uint32_t peer, const PeerKvMemory& memory);
  /// Copies from that rank fail from now on. Its memory is unmapped when the end of those under way has been
  /// taken.
  void detach(std::uint32_t peer, int rank) { peers_.forget(peer, rank); }

  /// Starts the copies of a command that is no copy_blocks; fewer than kMaxOpen may be open. The caller has
  /// ordered stream(op) behind what the command comes after.
  void submit(const wire::CacheCommand& command, std::span<const wire::BlockCopy> copies);

  /// The stream on which commands of this kind run.
  CUstream_st* stream(wire::CacheOp op) const { return lanes_[place(op)].stream.stream(); }

  /// Work that `stream` is given from now on begins when the commands up to `id` have ended.
  void delay(CUstream_st* stream, std::uint64_t id) const;

  /// Commands whose end was not taken.
  std::size_t open() const { return lanes_[0].count + lanes_[1].count + lanes_[2].count; }
  /// The end of a command, if one has ended. Asks the driver.
  bool take_ended(EndedCommand& out);
  /// When a command last ended, or one began while none was open.
  TimePoint progress() const { return progress_; }

  /// True when all copies have ended.
  bool idle() const;
  /// Forgets all commands, which must have ended.
  void forget();

 private:
  using Peers = PeerSources<const ImportedMemory>;
  struct Flight {
    std::uint64_t id = 0;
    bool failed = false;  // nothing was copied, or (debug builds) not what was copied out
    std::vector<wire::BlockCopy> copies;
    std::vector<Peers::Source> sources;  // of peer_in
    CudaEvent start{CudaEvent::Timing::on};
    CudaEvent end{CudaEvent::Timing::on};
  };
  // One kind of command: those that are open, a ring, oldest at `first`.
  struct Lane {
    explicit Lane(Cuda& device) : stream(device), flights(kMaxOpen) {}
    const Flight& at(std::size_t i) const { return flights[(first + i) % flights.size()]; }
    Flight& at(std::size_t i) { return flights[(first + i) % flights.size()]; }

    CudaCopyStream stream;
    std::vector<Flight> flights;
    std::size_t first = 0;
    std::size_t count = 0;
  };

  static constexpr std::size_t kOut = 0;
  static std::size_t place(wire::CacheOp op) {
    return op == wire::CacheOp::swap_out ? kOut : op == wire::CacheOp::swap_in ? 1 : 2;
  }
  std::byte* host(BlockId block) const { return memory_.data() + static_cast<std::size_t>(block) * bytes_; }
  void copy(CudaCopyStream& stream, std::byte* to, const std::byte* from,
            std::span<const wire::BlockCopy> copies) const;
  void copy(CudaCopyStream& stream, const Peers::Source& source,
            std::span<const wire::BlockCopy> copies) const;
  bool intact(std::span<const wire::BlockCopy> copies) const;

  std::byte* const kv_;
  const std::size_t bytes_;  // of a block
  PinnedMemory memory_;
  std::vector<std::uint64_t> sums_;  // of the blocks in memory_, in debug builds
  Peers peers_;
  std::array<Lane, 3> lanes_;  // out, in, in from peers
  TimePoint progress_{};
};

}  // namespace troupe::model
