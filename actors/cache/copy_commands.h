#pragma once
// The block copies that the worker is to make: those of the answer being made, the CacheCommand records that
// carry them, and the commands that have not ended. In a BlockPool each command is noted as the user of its
// blocks from the record on until its end, so that commands which touch the same block run in their order.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/cache/block_pool.h"
#include "actors/cache/peer_blocks.h"
#include "ipc/wire.h"

namespace troupe {

/// Used by one thread. Allocates when more commands are unfinished, or one is larger, than ever before.
class CopyCommands {
 public:
  /// Most blocks that one command copies from or to the swap space.
  static constexpr std::size_t kBlocksOfACommand = 64;

  /// A command that has not ended.
  struct InFlight {
    std::uint64_t id = 0;  ///< 0: unused entry
    wire::CacheOp op = wire::CacheOp::copy_blocks;
    std::vector<wire::BlockCopy> copies;
    std::vector<PeerBlock> sources;  ///< of peer_in: where the copies come from, likewise
  };

  /// A worker was attached: nothing is in flight, and command ids start at 1 again.
  void reset(std::uint32_t epoch);

  /// True when the worker's rings and queues have room for one copy more out of the KV memory, or for one
  /// more into it, from wherever, after `others` that are not added yet.
  bool may_save() const;
  bool may_fetch(std::size_t others) const;

  /// Adds a copy to the answer being made; not from a peer.
  void add(wire::CacheOp op, wire::BlockCopy copy);
  /// Adds one from another instance.
  void add(const PeerBlock& from, BlockId to);

  /// A new answer begins: the records of the last one end.
  void clear_records() { records_.clear(); }
  /// Writes the records for all copies added since the last call, and notes their use of the blocks of
  /// `pool`. Saves come first: the targets of the other copies may be blocks whose contents are saved.
  void write(BlockPool& pool);
  /// The records, in the order in which they are to be sent. Valid until clear_records() or write().
  std::span<const std::span<const std::byte>> records() const { return records_; }

  /// The unfinished command with this id; null: there is none. Valid until end() or write().
  const InFlight* find(std::uint64_t id) const;
  /// A command of find() has ended: it uses no block of `pool` any more. With `failed`, what a fetch was to
  /// write is lost.
  void end(const InFlight& command, bool failed, BlockPool& pool);

 private:
  /// The copies of one kind.
  struct Copies {
    std::vector<wire::BlockCopy> added;  ///< of the answer being made
    std::vector<PeerBlock> sources;      ///< of peer_in: where they come from, likewise
    std::size_t unfinished = 0;          ///< with those in flight
  };

  static std::size_t place(wire::CacheOp op) { return static_cast<std::size_t>(op) - 1; }
  Copies& of(wire::CacheOp op) { return copies_[place(op)]; }
  const Copies& of(wire::CacheOp op) const { return copies_[place(op)]; }
  void write_commands(wire::CacheOp op, BlockPool& pool);
  void write_command(wire::CacheOp op, std::span<const wire::BlockCopy> copies,
                     std::span<const PeerBlock> sources, BlockPool& pool);

  std::uint32_t epoch_ = 0;
  std::uint64_t last_id_ = 0;
  std::array<Copies, 4> copies_;
  std::vector<InFlight> in_flight_;
  std::size_t flying_ = 0;  ///< entries of in_flight_ in use
  std::vector<wire::RecordWriter<wire::CacheCommand>> writers_;
  std::vector<std::span<const std::byte>> records_;
};

}  // namespace troupe
