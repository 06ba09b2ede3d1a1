#pragma once
// Shared memory through which one process gets KV blocks from another (docs/split.md): the asker names
// blocks, and the giver puts their bytes beside the names. Beside a decode instance the worker asks, and the
// relay that is connected to the prefill engine gives; beside a prefill engine on a GPU the relay asks, and
// the worker gives.
//
// One process of each side at a time. There is no lock, and either may be killed at any instruction:
//
//   free ──asker──▶ wanted ──giver──▶ ready | failed ──asker──▶ free
//
// Each want has a turn of its own, which is in the slot's state: what a giver has for a want that the asker
// has given up, or that an asker before this one has left, changes nothing. Bytes count only while the slot
// is `ready` in the turn in which they were wanted. The giver writes the bytes of a slot's wants in their
// order, so that those of a later one come last.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "ipc/fd.h"
#include "ipc/memory_file.h"
#include "ipc/wakeup.h"

namespace troupe::ipc {

enum class FetchPhase : std::uint64_t { free = 0, wanted, ready, failed };

/// One block that is wanted. `state` is the turn and, in its lowest bits, the phase.
struct FetchSlot {
  std::atomic<std::uint64_t> state{0};
  std::atomic<std::uint64_t> memory{0};  ///< the life of the KV memory that has the block
  std::atomic<BlockId> block{kNoBlock};  ///< in that memory
};

struct BlockFetchesHeader {
  static constexpr std::size_t kMostSlots = 64;

  std::uint64_t magic = 0;
  std::uint32_t version = 0;  ///< wire::kVersion
  std::uint32_t padding = 0;
  std::uint64_t bytes = 0;                                ///< of the file; what stands above never changes
  alignas(64) std::atomic<std::uint64_t> block_bytes{0};  ///< of the asker's KV blocks; 0: none has come
  std::atomic<std::uint32_t> connected{0};                ///< 1: the giver can give
  Doorbell giver, asker;                                  ///< that side sleeps here
  FetchSlot slots[kMostSlots];
};

/// Either side's view.
class BlockFetches {
 public:
  static constexpr std::size_t kMostSlots = BlockFetchesHeader::kMostSlots;
  /// For the bytes of all slots; a block has at most so many. Enough for what is under way on a connection of
  /// 10 GB/s with a round trip of 5 ms.
  static constexpr std::uint64_t kBytes = std::uint64_t{64} << 20;

  /// An empty one. Its pages take memory when they are first used.
  static Result<Fd> create(std::uint64_t bytes = kBytes);
  /// Maps it after checking seals, size, magic and version. Does not keep the descriptor.
  static Result<BlockFetches> attach(int fd);

  BlockFetches(BlockFetches&&) noexcept;
  BlockFetches& operator=(BlockFetches&&) noexcept;
  ~BlockFetches();

  /// Slots for blocks of this size: from 0 to kMostSlots.
  std::size_t slots(std::uint64_t block_bytes) const;

  /// Where the bytes of all slots lie, from the beginning of a page on.
  std::span<std::byte> memory() const { return {data_, static_cast<std::size_t>(data_bytes_)}; }

  // The asker's:

  /// An asker has come whose KV blocks have so many bytes: what others wanted is given up. invalid_argument:
  /// there is not room for one.
  Status begin(std::uint64_t block_bytes);
  /// Wants a block. The slot is free.
  void want(std::size_t slot, std::uint64_t memory, BlockId block);
  /// Whether the slot's block has come, once that is known; nothing at the deadline. False at once while the
  /// giver cannot give. One thread.
  std::optional<bool> await(std::size_t slot, TimePoint deadline);
  /// The bytes of a block that has come; until give_back().
  std::span<const std::byte> contents(std::size_t slot) const;
  /// The slot is free from now on, whatever its phase.
  void give_back(std::size_t slot);

  // The giver's:

  /// A want that the giver has seen.
  struct Want {
    std::size_t slot = 0;
    std::uint64_t state = 0;  ///< of the slot
    std::uint64_t memory = 0;
    BlockId block = kNoBlock;
  };

  /// 0: no asker has come yet.
  std::uint64_t block_bytes() const { return header_->block_bytes.load(std::memory_order_acquire); }
  /// Whether the giver can give. While it cannot, wants fail.
  void set_connected(bool on);
  /// A want behind the `seen` ones; nothing at the deadline. `seen` has kMostSlots states, zeros at first,
  /// and gets the want's. One thread.
  std::optional<Want> next_want(std::span<std::uint64_t> seen, TimePoint deadline);
  /// Where the bytes of a slot go; empty if the asker's blocks do not have so many.
  std::span<std::byte> room(std::size_t slot, std::uint64_t block_bytes);
  /// The block has come, or cannot. Nothing if the asker has given the want up.
  void answer(const Want& want, bool has_come);

 private:
  explicit BlockFetches(MappedRegion region);
  std::uint64_t stride(std::uint64_t block_bytes) const;
  std::optional<Want> find_want(std::span<const std::uint64_t> seen) const;

  MappedRegion region_;
  BlockFetchesHeader* header_ = nullptr;
  std::byte* data_ = nullptr;  ///< the first slot's bytes
  std::uint64_t data_bytes_ = 0;
};

}  // namespace troupe::ipc
