#pragma once
// The prefill side of KV connections: gives blocks out of the workers' KV memory, which it has mapped to
// read, or of which the workers copy blocks for it. Where the decode instance has another number of ranks,
// the block of one of its ranks is put together here, so that no other byte is sent (model/swap/kv_layout.h).
// The engine may reuse a block at any time: a copy counts only if the block had its name before and after.
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "actors/remote/kv_frames.h"
#include "actors/remote/staged_blocks.h"
#include "actors/remote/stream.h"
#include "actors/supervisor/kv_memory.h"
#include "base/status.h"
#include "ipc/block_names.h"
#include "model/sealed_memory.h"
#include "model/swap/kv_layout.h"

namespace troupe::remote {

/// Any thread may call any function.
class KvServer {
 public:
  /// `names` is the engine's table. `ranks` 0: there are no blocks for others here. `layout` is that of the
  /// blocks. `staged`: by rank, for memory that cannot be mapped.
  KvServer(std::size_t ranks, const model::KvLayout& layout, std::shared_ptr<const ipc::BlockNames> names,
           std::vector<ipc::BlockFetches> staged = {});

  std::size_t ranks() const { return memories_.size(); }

  /// The memory of a rank from now on. Not ok: it cannot be mapped, or its blocks do not have the layout;
  /// they are gone.
  Status set_memory(std::size_t rank, const supervisor::KvMemory& memory);
  /// The memory of a rank has ended.
  void forget_memory(std::size_t rank);

  /// Why a connection for this part cannot be served, in words that follow "the engine at …"; "": it can.
  std::string refusal(const KvPart& asked) const;
  /// Answers wants of a part that is not refused until the connection ends or asked to stop. Returns why it
  /// has ended.
  std::string serve(Stream& stream, const KvPart& asked, const std::stop_token& stop);

 private:
  struct Memory {
    model::SealedMemory mapped;
    StagedBlocks* staged = nullptr;  // for memory that is not mapped
    std::uint64_t life = 0;
    std::uint64_t own_life = 0;  // of this rank's memory alone
    std::size_t blocks = 0;
    std::size_t block_bytes = 0;
  };
  /// A slice of a decode rank's block, and where its bytes are.
  struct Source {
    model::KvSlice slice;
    std::shared_ptr<const Memory> memory;
  };
  std::vector<Source> sources(std::span<const model::KvSlice> slices) const;
  static bool copy(std::span<const Source> sources, BlockId block, std::span<std::byte> into);
  bool read_block(const KvWant& want, std::span<const Source> sources, std::span<std::byte> into) const;
  void put_answer(const KvWant& want, std::span<const Source> sources, std::size_t bytes,
                  std::vector<std::byte>& out) const;

  const model::KvLayout layout_;
  const std::shared_ptr<const ipc::BlockNames> names_;
  std::deque<StagedBlocks> staged_;  // by rank
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const Memory>> memories_;  // by rank; guarded by mutex_
};

}  // namespace troupe::remote
