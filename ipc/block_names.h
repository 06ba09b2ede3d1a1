#pragma once
// The names of the KV blocks whose contents may be found again, in shared memory that outlives the engine:
// the workers keep their memory when an engine dies, and the next engine finds in this table what is there.
//
// One process writes, the engine (its CACHE MANAGER); any number may read. There is no lock. The writer may
// be killed at any instruction: every entry then is absent or was written whole, and the next writer goes on.
//
// The table says nothing of when contents change. Its writer sets an entry after the step that filled the
// block has come back, and clears it before it lets a plan or a command write the block.
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>

#include "base/ids.h"
#include "base/status.h"
#include "ipc/fd.h"
#include "ipc/memory_file.h"

namespace troupe::ipc {

/// What an entry holds.
struct BlockName {
  BlockHash hash{};        ///< never zero
  std::int32_t place = 0;  ///< index of the block in the chain of blocks that its name ends, from 0

  bool operator==(const BlockName&) const = default;
};

/// 128 secret random bits with which names are hashed; for HashKey (actors/cache/block_hash.h).
struct NamesKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

/// The id of two memories that live at the same time: another one of either gives another id. 0: one has
/// none.
constexpr std::uint64_t lives_together(std::uint64_t a, std::uint64_t b) {
  if (a == 0 || b == 0) return 0;
  // Ids are random: an odd factor and a rotation keep equal ones, and pairs that are swapped, from cancelling
  // out.
  const std::uint64_t both = std::rotl(a * 0x9e3779b97f4a7c15ull, 31) ^ b;
  return both == 0 ? 1 : both;
}

/// The first page. What is above `memory` never changes; attach() checks it.
struct BlockNamesHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;  ///< wire::kVersion
  std::uint32_t entry_bytes = 0;
  std::uint64_t entries = 0;
  NamesKey key{};
  alignas(64) std::atomic<std::uint64_t> memory{
      0};                              ///< the life of the workers' memory that entries are about; 0: none
  std::atomic<std::uint64_t> used{0};  ///< entries behind these have not been set since begin()
};

/// The other words are valid while `state` is odd. Every change raises it, so that a reader who sees the same
/// odd number before and after has read words of one name.
struct BlockNameEntry {
  std::atomic<std::uint64_t> state{0};
  std::atomic<std::uint64_t> hi{0};
  std::atomic<std::uint64_t> lo{0};
  std::atomic<std::uint64_t> place{0};
};

inline constexpr std::uint64_t kBlockNamesMagic = 0x3173656d616e7274;  // "trnames1"
inline constexpr std::uint32_t kBlockNamesHeaderBytes = 4096;
static_assert(sizeof(BlockNamesHeader) <= kBlockNamesHeaderBytes && sizeof(BlockNameEntry) == 32);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

class BlockNames {
 public:
  /// Entries of a table unless create() is told another number: 4 Mi blocks of 64 tokens are 268 million
  /// tokens. The table is made before any worker knows how many blocks it has; entries that are never set
  /// take no memory.
  static constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 22;

  /// A key from the system's randomness.
  static Result<NamesKey> make_key();

  /// A new empty table. Tables with one key name the same contents alike; without one it gets a key of its
  /// own.
  static Result<Fd> create(std::uint64_t entries = kMostBlocks, const std::optional<NamesKey>& key = {});

  /// Maps a table after checking seals, size, magic, version and layout. Does not keep the descriptor.
  static Result<BlockNames> attach(int fd, Access access = Access::write);

  BlockNames(BlockNames&&) noexcept;
  BlockNames& operator=(BlockNames&&) noexcept;
  ~BlockNames();

  NamesKey key() const { return header_->key; }
  std::uint64_t entries() const { return header_->entries; }

  /// The life of the workers' memory that the entries are about; 0: there is none, and no entry counts.
  std::uint64_t memory() const { return header_->memory.load(std::memory_order_acquire); }

  /// No block with this id or a greater one has an entry.
  BlockId end() const;

  /// A number that every change of the block's entry changes. Requires a block below end().
  std::uint64_t state(BlockId block) const {
    return at(static_cast<std::uint64_t>(block)).state.load(std::memory_order_acquire);
  }

  /// The block's name; false when it has none, or it changes at this moment.
  bool read(BlockId block, BlockName& out) const;

  // The writer's:

  /// Clears the table; from now on its entries are about the memory with this id. O(end()).
  void begin(std::uint64_t memory);

  /// What the table says may be wrong: its entries are about no memory from now on. Any thread of the writing
  /// process.
  void distrust() { header_->memory.store(0, std::memory_order_release); }

  /// Requires that hash is not zero. A block behind the last entry gets none: the next engine does not find
  /// it.
  void set(BlockId block, const BlockName& name);

  /// Nothing when the block has no entry.
  void clear(BlockId block);

 private:
  explicit BlockNames(MappedRegion region);

  BlockNameEntry& at(std::uint64_t block) const { return entries_[block]; }

  MappedRegion region_;
  BlockNamesHeader* header_ = nullptr;
  BlockNameEntry* entries_ = nullptr;
};

}  // namespace troupe::ipc
