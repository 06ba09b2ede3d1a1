#pragma once
// KV blocks from a rank of a prefill instance to a rank of a decode instance on another GPU of this machine,
// where neither GPU reads the other's memory: a pair of ends that move batches of blocks together, as NCCL
// does. The receiver asks, so the sender needs to know nothing of requests. This file decides when which end
// does what; a PairMover moves the bytes.
//
// Nothing that comes is in the KV memory before the whole batch has come. So a batch that is given up has
// changed no block, and its blocks may be used for something else at once, whatever the mover still does.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/owned_fd.h"
#include "ipc/wire.h"
#include "model/executor.h"
#include "model/swap/kv_pair_messages.h"
#include "model/swap/kv_slices.h"

namespace troupe::model {

/// What both ends agree on.
struct PairTerms {
  std::vector<KvSlice> slices;  ///< of a block; `to` and `to_pitch` mean something on the receiver alone
  std::size_t batch = 1;        ///< most blocks that move together

  /// Bytes of a block that move.
  std::size_t bytes() const;
};

/// As many blocks as move together well: up to 32 MiB, at least one block.
std::size_t pair_batch(std::size_t bytes_of_block);

/// Moves the bytes, at one end of a pair. One thread at a time. A function that throws std::runtime_error has
/// ended the mover: only the destructor, which may then take long, is called after that.
class PairMover {
 public:
  using Id = decltype(PairMeeting::id);

  virtual ~PairMover() = default;
  /// PCI address of the GPU.
  virtual std::string gpu() const = 0;
  /// Version of the library.
  virtual int library() const = 0;

  /// Fills an id by which two ends find each other.
  virtual void make_id(Id& id) = 0;
  /// Begins to look for the other end.
  virtual void meet(const Id& id) = 0;
  /// True once it was found.
  virtual bool met() = 0;

  /// Begins to move these blocks of this end's KV memory, as many as the other end moves: the sender out of
  /// it, the receiver into memory beside it.
  virtual void move(std::span<const BlockId> blocks) = 0;
  /// True once they have moved.
  virtual bool moved() = 0;
  /// Of the receiver: copies what has moved into the blocks. Returns when it is there.
  virtual void put() = 0;
};

/// Makes this end's mover. Throws std::runtime_error where there is none.
using MakeMover = std::function<std::unique_ptr<PairMover>(const PairTerms& terms)>;

struct PairLimits {
  Duration meet = std::chrono::seconds(10);           ///< from the greeting to the first request
  Duration move = std::chrono::seconds(5);            ///< for a batch
  Duration stopped = std::chrono::milliseconds(200);  ///< for a batch whose command was stopped
};

/// The decode rank's end. The mover's destructor runs on a thread of its own, so no function waits for it.
class KvPairReceiver {
 public:
  /// Greets the sender at `socket` on a thread, on which `tell` is called too: when the pair is about to be
  /// ready, and once when it has ended by itself. `memory` is that of the sender's rank.
  KvPairReceiver(OwnedFd socket, const PeerKvMemory& memory, PairTerms terms, MakeMover make, TellPair tell,
                 const PairLimits& limits = {});
  /// Ends the pair. No copy() may run.
  ~KvPairReceiver();

  /// There are no more copies, and one that runs fails. Any thread.
  void end() { socket_.close(); }
  bool ready() const { return ready_; }

  /// Copies these blocks of the sender's. False: the pair is not ready yet or has ended, or `stop` has become
  /// true; none or all blocks of a batch have been written then. Waits no longer than the limits of its
  /// batches. One thread.
  bool copy(std::span<const wire::BlockCopy> copies, const std::atomic<bool>& stop);

 private:
  PairNews join(const PeerKvMemory& memory);
  PairNews copy_batch(std::span<const wire::BlockCopy> copies, const std::atomic<bool>& stop);
  void lose(const PairNews& news);

  PairSocket socket_;
  const PairTerms terms_;
  const MakeMover make_;
  const TellPair tell_;
  const PairLimits limits_;
  std::unique_ptr<PairMover> mover_;  // of thread_ until ready_, then of copy()
  std::uint64_t number_ = 0;          // of the last request
  std::atomic<bool> ready_{false};
  std::thread thread_;
};

/// The prefill rank's end. Serves one receiver until that has gone, on a thread of its own.
class KvPairSender {
 public:
  /// `blocks` of block_bytes each are in the KV memory that has this life.
  struct Memory {
    std::uint64_t life = 0;
    std::size_t blocks = 0;
    std::size_t block_bytes = 0;
  };
  KvPairSender(OwnedFd socket, const Memory& memory, MakeMover make, const PairLimits& limits = {});
  ~KvPairSender();

  bool has_ended() const { return ended_; }

 private:
  void run();
  std::string refusal(const PairHello& hello) const;
  bool welcome();
  bool meet();
  void serve();
  bool is_sound(const PairRequest& request, std::uint64_t number) const;

  PairSocket socket_;
  const Memory memory_;
  const MakeMover make_;
  const PairLimits limits_;
  PairTerms terms_;
  std::unique_ptr<PairMover> mover_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace troupe::model
