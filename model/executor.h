#pragma once
// The only virtual interface between the engine and a device: a call per step, never per op.
//
// An Executor owns weights, KV memory and sequences' device state. It is used by one thread.
// submit() takes a plan, a plan's masks or a cache command and never waits for the device; poll() returns
// finished records in the order of submission, with two exceptions. Plans and commands come through two
// rings, so a plan may be submitted before the command that it names in after_cache_command; the command then
// overtakes it. And copies from and to the swap space run beside the steps and end in any order that `after`
// allows. At least capacity().max_steps_in_flight plans may be pending. A step with gated rows runs its
// layers like any other and samples when it has all its masks (wire::StepMasks); steps behind it wait for
// that. On a device with its own queue (CUDA) work starts at submit(); the CPU runs it inside poll().
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/owned_fd.h"
#include "base/status.h"
#include "ipc/wire.h"

namespace troupe {

/// The KV memory of one rank of another instance, to read: blocks that lie one after the other.
struct PeerKvMemory {
  int rank = 0;
  int ranks = 1;  ///< of the other instance, which may have another number of them
  int fd = -1;    ///< of the other executor's kv_memory_fd(); borrowed for the call
  std::size_t blocks = 0;
  std::size_t block_bytes = 0;
  std::uint64_t life = 0;      ///< what commands call it by
  std::uint64_t own_life = 0;  ///< what that rank calls it by

  std::size_t bytes() const { return blocks * block_bytes; }
};

/// Gets KV blocks of an instance on another machine, whose memory has this life, and calls `take` with each
/// copy of `copies` in their order; the bytes can be read during the call. False when one cannot be had, or
/// once `stop` is true: those that were taken count for nothing then. Waits for a bounded time. One thread at
/// a time.
using FetchBlocks = std::function<bool(
    std::uint64_t life, std::span<const wire::BlockCopy> copies,
    const std::function<void(const wire::BlockCopy& copy, std::span<const std::byte> block)>& take,
    const std::atomic<bool>& stop)>;

/// What has become of a pair (Executor::attach_pair()). `lost`: the other worker has gone or does not answer;
/// the pair may be tried again, by another socket. `failed`: both have tried, and NCCL has not moved what it
/// should; likewise, but not often. `refused`: another try is of no use. `why`: a clause without an end, for
/// all but `ready`.
struct PairNews {
  enum class What { ready, lost, failed, refused };
  What what = What::ready;
  std::string why;
};
/// Called on threads of the executor, and never by one of its functions.
using TellPair = std::function<void(const PairNews& news)>;

/// Copies a block of an executor's KV memory to host memory, of which it fills as many bytes as the block
/// has. False: there is no such block, its size is another, or the device has failed. The bytes are those of
/// the block only if nothing has written it meanwhile. One thread at a time, which need not be the
/// executor's.
using ReadBlock = std::function<bool(BlockId block, std::span<std::byte> into)>;

class Executor {
 public:
  virtual ~Executor() = default;

  virtual wire::Capacity capacity() const = 0;

  /// "cpu: avx512_bf16, 2 threads"; for Hello and the log.
  virtual std::string device() const = 0;

  /// What of this model runs by a slow way on this device, a sentence each; for the log. Empty: nothing.
  virtual std::vector<std::string> slow_ways() const { return {}; }

  /// What loading the weights found that an operator may want to know, in a sentence; empty: nothing.
  virtual std::string load_note() const { return {}; }

  /// Goes on with what a rank has to do with the other ranks after reset(), and never waits for them. True:
  /// it is done, and records may be submitted. A device error is a Status.
  virtual Result<bool> prepare() { return true; }

  /// Takes a StepPlan or a CacheCommand, which poll() answers by one record each, or StepMasks and
  /// SequenceMedia, which it does not answer. Copies what it needs: the bytes may go after the call.
  /// invalid_argument when the record is malformed or names what does not exist; nothing was taken then.
  virtual Status submit(const wire::RecordView& record) = 0;

  /// Encodes an item of a sequence, whose SequenceMedia was submitted; poll() answers by a MediaDone.
  /// `patches`: those at command.place; they can be read until the answer. Errors as of submit().
  virtual Status encode(const wire::EncodeMedia& command, std::span<const std::byte> patches) {
    static_cast<void>(command), static_cast<void>(patches);
    return invalid("this device encodes no images or videos");
  }
  /// Instead of encode(): the item's patches are gone. Ranks that encode it with this one hear of it. There
  /// is no answer.
  virtual void skip_encoding(const wire::EncodeMedia& command) { static_cast<void>(command); }

  /// Writes a finished record (StepResult, CacheDone or MediaDone, complete but for header.epoch) into
  /// `out`, or returns false when none finished before the deadline. A device error is a Status.
  virtual Result<bool> poll(std::vector<std::byte>& out, TimePoint deadline) = 0;

  /// True if nothing that is pending can go on before another record is submitted: poll() would only pass the
  /// time.
  virtual bool waits_for_record() const { return false; }

  /// From now on a call of poll() that computes raises `word` now and then: who watches it sees that a long
  /// step goes on. Does nothing on a device with its own queue. The word outlives the last call.
  virtual void count_progress(std::atomic<std::int64_t>& word) { static_cast<void>(word); }

  /// The descriptor of the KV memory by which another instance's executor on such a device may read it
  /// (attach_peer); -1: the memory is this process's alone.
  virtual int kv_memory_fd() const { return -1; }

  /// The KV memory of a rank of the instance with this index from now on, for wire::CacheOp::peer_in. Such
  /// copies need the memories of all ranks that have KV heads of this executor; of another rank the memory is
  /// ignored. Not ok when its blocks are of another size, or the device cannot read it: copies from the
  /// instance fail then.
  virtual Status attach_peer(std::uint32_t peer, const PeerKvMemory& memory) {
    static_cast<void>(peer), static_cast<void>(memory);
    return invalid("this device reads no other instance's KV memory");
  }

  /// That rank of the instance has ended, or its memory has: copies from it fail from now on, and the memory
  /// is let go when those under way have ended.
  virtual void detach_peer(std::uint32_t peer, int rank) { static_cast<void>(peer), static_cast<void>(rank); }

  /// Instead of attach_peer(), for memory that this device cannot read: that rank's worker and this one are a
  /// pair that moves blocks by NCCL, and speak through `socket`, whose other end the caller takes to that
  /// worker's give_pair(). Copies from the instance fail until the pair is ready, and when it is lost. It
  /// ends as by detach_peer(). False: this executor needs no blocks of that rank.
  virtual Result<bool> attach_pair(std::uint32_t peer, const PeerKvMemory& memory, OwnedFd socket,
                                   TellPair tell) {
    static_cast<void>(peer), static_cast<void>(memory), static_cast<void>(socket), static_cast<void>(tell);
    return failure(Code::unsupported, "this device moves no KV blocks by NCCL");
  }

  /// The other side of attach_pair(): gives blocks to the receiver at the socket, beside the steps, for as
  /// long as that is there. `life`: this rank's own id of its KV memory. Failures are told to the
  /// receiver.
  virtual void give_pair(OwnedFd socket, std::uint64_t life) {
    static_cast<void>(socket), static_cast<void>(life);
  }

  /// Blocks of the instance with this index, which is on another machine, come by `fetch`, whose bytes lie in
  /// `memory`: a GPU page-locks it for as long as it keeps `fetch`. Before the first submit(). Not ok: this
  /// device has no way to take them, and copies from the instance fail.
  virtual Status attach_remote_peer(std::uint32_t peer, FetchBlocks fetch, std::span<std::byte> memory) {
    static_cast<void>(peer), static_cast<void>(fetch), static_cast<void>(memory);
    return invalid("this device takes no KV blocks from other machines");
  }

  /// Reads KV blocks into `memory`, which stays mapped as long as what is returned, beside the steps and
  /// without a delay of any. What is returned ends before the executor. Empty: other processes of this
  /// machine read the KV memory themselves, by kv_memory_fd().
  virtual Result<ReadBlock> block_reader(std::span<std::byte> memory) {
    static_cast<void>(memory);
    return ReadBlock();
  }

  /// Forgets every sequence; weights and KV memory stay. Waits for running work, for a bounded time; if that
  /// passes, later calls return internal. Several ranks of one model run steps together only while all are in
  /// the same epoch, that of their links; the epoch of a rank alone means nothing.
  virtual void reset(std::uint32_t epoch) = 0;
};

}  // namespace troupe
