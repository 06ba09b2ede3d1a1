#pragma once
// The KV memories of other instances' ranks that a rank has mapped, and what a copy of blocks reads of them.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ipc/wire.h"
#include "model/executor.h"
#include "model/swap/kv_slices.h"

namespace troupe::model {

/// `Memory` is a mapping, or what else gets blocks out of a memory; it ends with the last that shares it. Not
/// for several threads at once.
template <class Memory>
class PeerSources {
 public:
  /// A slice of a block, and the memory in which the other instance's blocks lie.
  struct Source {
    KvSlice slice;
    std::shared_ptr<Memory> memory;
    std::size_t block_bytes = 0;  ///< of a block there
  };

  explicit PeerSources(KvPart part) : part_(std::move(part)) {}

  /// True: this rank reads that memory, and set() may be called with it. invalid_argument: the other instance
  /// is not divided as it says, or its blocks have another size.
  Result<bool> needs(const PeerKvMemory& memory) const {
    if (!divides_kv_heads(part_.kv_heads, memory.ranks) || memory.rank < 0 || memory.rank >= memory.ranks) {
      return invalid("rank " + std::to_string(memory.rank) + " of " + std::to_string(memory.ranks) +
                     " of the other instance is none that " + std::to_string(part_.kv_heads) +
                     " KV heads can be divided among");
    }
    const std::size_t own = kv_block_bytes(part_, memory.ranks);
    if (memory.block_bytes != own) {
      return invalid("a KV block of rank " + std::to_string(memory.rank) + " of the other instance has " +
                     std::to_string(memory.block_bytes) + " bytes, for this one it would have " +
                     std::to_string(own));
    }
    return std::ranges::any_of(kv_slices(part_, memory.ranks),
                               [&](const KvSlice& slice) { return slice.rank == memory.rank; });
  }

  /// Copies with that life of the instance come from there.
  void set(std::uint32_t peer, const PeerKvMemory& memory, std::shared_ptr<Memory> mapped) {
    Peer& of = peers_[peer];
    if (of.ranks != memory.ranks) of = {memory.ranks, kv_slices(part_, memory.ranks), {}};
    of.memories.insert_or_assign(memory.rank, RankMemory{std::move(mapped), memory.blocks, memory.life});
  }

  /// Copies that read this rank of the instance fail from now on. Returns the memory; null: it had none.
  std::shared_ptr<Memory> forget(std::uint32_t peer, int rank) {
    const auto known = peers_.find(peer);
    if (known == peers_.end()) return nullptr;
    const auto forgotten = known->second.memories.extract(rank);
    return forgotten.empty() ? nullptr : forgotten.mapped().memory;
  }
  void clear() { peers_.clear(); }

  /// True if some rank of the instance has a memory here.
  bool has(std::uint32_t peer) const {
    const auto known = peers_.find(peer);
    return known != peers_.end() && !known->second.memories.empty();
  }

  /// The slices of this rank's blocks that lie in blocks of that rank of `ranks`.
  std::vector<KvSlice> slices_of(int rank, int ranks) const {
    std::vector<KvSlice> slices = kv_slices(part_, ranks);
    std::erase_if(slices, [rank](const KvSlice& slice) { return slice.rank != rank; });
    return slices;
  }

  /// All that fills the blocks of a peer_in. Empty: the instance's memory of that life is not mapped
  /// whole, or lacks a block.
  std::vector<Source> of(std::uint32_t peer, std::uint64_t life,
                         std::span<const wire::BlockCopy> copies) const {
    const auto known = peers_.find(peer);
    if (known == peers_.end()) return {};
    std::vector<Source> sources;
    for (const KvSlice& slice : known->second.slices) {
      const auto at = known->second.memories.find(slice.rank);
      if (at == known->second.memories.end() || at->second.life != life) return {};
      const auto has = [&](const wire::BlockCopy& copy) {
        return static_cast<std::size_t>(copy.from) < at->second.blocks;
      };
      if (!std::ranges::all_of(copies, has)) return {};
      sources.push_back({slice, at->second.memory, kv_block_bytes(part_, known->second.ranks)});
    }
    return sources;
  }

 private:
  struct RankMemory {
    std::shared_ptr<Memory> memory;
    std::size_t blocks = 0;
    std::uint64_t life = 0;
  };
  struct Peer {
    int ranks = 0;
    std::vector<KvSlice> slices;
    std::map<int, RankMemory> memories;  // by rank; those that slices are in
  };

  KvPart part_;
  std::map<std::uint32_t, Peer> peers_;
};

}  // namespace troupe::model
