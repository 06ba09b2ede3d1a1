#pragma once
// The KV memory of a worker, as the control channels tell of it (control.h, prefill_peers.h).
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "actors/supervisor/control.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

struct KvMemory {
  std::uint64_t life = 0;  ///< not zero; between instances that of the memories of all ranks together
  std::int64_t blocks = 0;
  std::int64_t block_bytes = 0;
  ipc::Fd file;  ///< with the blocks one after the other; a memory file, or the driver's handle on a GPU
  std::uint64_t own_life = 0;  ///< the rank's own, where `life` is that of all ranks together; else 0

  /// All but the file, as orders and events have it.
  nlohmann::json members() const;
  /// False of a GPU's memory, which takes a device to map.
  bool is_of_host() const;
};

/// What a packet tells, which loses its descriptor. None when a member or the file is missing, or a memory
/// file is shorter than the blocks.
std::optional<KvMemory> kv_memory_of(Packet& packet);

/// The KV memories of this instance's ranks, as others are told of them: all together, with one life.
class RankMemories {
 public:
  explicit RankMemories(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  std::size_t ranks() const { return ranks_.size(); }
  /// Worker process `pid` has this memory.
  void set(int rank, int pid, KvMemory memory);
  /// Process `pid` is the rank's worker now, 0: none is. True: the memory of another has gone with it.
  bool keep_of(int rank, int pid);

  /// That of the memories of all ranks; 0: one is missing.
  std::uint64_t life() const;
  /// What others are told of a rank's, which is there: the members with life(), and the file.
  nlohmann::json members(std::size_t rank) const;
  int file(std::size_t rank) const { return ranks_[rank].memory->file.get(); }

 private:
  struct Rank {
    int pid = 0;
    std::optional<KvMemory> memory;
  };
  std::vector<Rank> ranks_;
};

}  // namespace troupe::supervisor
