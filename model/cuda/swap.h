#pragma once
// The swap space of a GPU: pinned host memory, and copies on two streams of their own, one for each direction
// of the link, so that steps go on meanwhile.
//
// Commands of one direction run in the order of arrival; everything else is ordered by events, and only as
// far as `after` and StepPlan::after_cache_command ask for it.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "gpu/cuda_copy_stream.h"
#include "gpu/cuda_event.h"
#include "gpu/pinned.h"
#include "ipc/wire.h"
#include "kernels/batch.h"
#include "model/result_writer.h"

namespace troupe::model {

/// One thread. All functions but the destructor throw CudaError.
class CudaSwap {
 public:
  static constexpr std::size_t kMaxOpen = 256;

  /// `kv`: outlives it.
  CudaSwap(Cuda& device, const kernels::KvCache& kv, std::int32_t blocks);

  /// Starts the copies of a swap command; fewer than kMaxOpen may be open. The caller has ordered stream(op)
  /// behind what the command comes after.
  void submit(const wire::CacheCommand& command, std::span<const wire::BlockCopy> copies);

  /// The stream on which commands of this kind run.
  CUstream_st* stream(wire::CacheOp op) const { return lane(op).stream.stream(); }

  /// Work that `stream` is given from now on begins when the swap commands up to `id` have ended.
  void delay(CUstream_st* stream, std::uint64_t id) const;

  /// Commands whose end was not taken.
  std::size_t open() const { return lanes_[0].count + lanes_[1].count; }
  /// The end of a command, if one has ended. Asks the driver.
  bool take_ended(EndedCommand& out);
  /// When a command last ended, or one began while none was open.
  TimePoint progress() const { return progress_; }

  /// True when all copies have ended.
  bool idle() const;
  /// Forgets all commands, which must have ended.
  void forget();

 private:
  struct Flight {
    std::uint64_t id = 0;
    bool failed = false;  // a block of the command is not what was copied out (debug builds)
    std::vector<wire::BlockCopy> copies;
    CudaEvent start{CudaEvent::Timing::on};
    CudaEvent end{CudaEvent::Timing::on};
  };
  // One direction of the link: its open commands, a ring, oldest at `first`.
  struct Lane {
    explicit Lane(Cuda& device) : stream(device), flights(kMaxOpen) {}
    const Flight& at(std::size_t i) const { return flights[(first + i) % flights.size()]; }

    CudaCopyStream stream;
    std::vector<Flight> flights;
    std::size_t first = 0;
    std::size_t count = 0;
  };

  Lane& lane(wire::CacheOp op) { return lanes_[op == wire::CacheOp::swap_in ? 1 : 0]; }
  const Lane& lane(wire::CacheOp op) const { return lanes_[op == wire::CacheOp::swap_in ? 1 : 0]; }
  std::byte* host(BlockId block) const { return memory_.data() + static_cast<std::size_t>(block) * bytes_; }
  std::byte* device(BlockId block) const { return kv_ + static_cast<std::size_t>(block) * bytes_; }
  bool intact(std::span<const wire::BlockCopy> copies) const;

  std::byte* const kv_;
  const std::size_t bytes_;  // of a block
  PinnedMemory memory_;
  std::vector<std::uint64_t> sums_;  // of the blocks in memory_, in debug builds
  std::array<Lane, 2> lanes_;        // out, in
  TimePoint progress_{};
};

}  // namespace troupe::model
