#pragma once
// The KV memory of a worker, as the control channels tell of it (control.h, prefill_peers.h).
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "actors/supervisor/control.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

struct KvMemory {
  std::uint64_t life = 0;  ///< not zero; between instances that of the memories of all ranks together
  std::int64_t blocks = 0;
  std::int64_t block_bytes = 0;
  ipc::Fd file;  ///< with the blocks one after the other; a memory file, or the driver's handle on a GPU

  /// All but the file, as orders and events have it.
  nlohmann::json members() const;
};

/// What a packet tells, which loses its descriptor. None when a member or the file is missing, or a memory
/// file is shorter than the blocks.
std::optional<KvMemory> kv_memory_of(Packet& packet);

}  // namespace troupe::supervisor
