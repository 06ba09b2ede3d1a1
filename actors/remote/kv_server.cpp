#include "actors/remote/kv_server.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "model/swap/checksum.h"

namespace troupe::remote {

KvServer::KvServer(std::size_t ranks, std::shared_ptr<const ipc::BlockNames> names,
                   std::vector<ipc::BlockFetches> staged)
    : names_(std::move(names)), memories_(ranks) {
  for (ipc::BlockFetches& asked : staged) staged_.emplace_back(std::move(asked));
}

Status KvServer::set_memory(std::size_t rank, const supervisor::KvMemory& memory) {
  forget_memory(rank);
  if (rank >= memories_.size()) return invalid("there is no rank " + std::to_string(rank));
  const auto blocks = static_cast<std::size_t>(memory.blocks);
  const auto block_bytes = static_cast<std::size_t>(memory.block_bytes);
  Memory made{{}, nullptr, memory.life, memory.own_life, blocks, block_bytes};
  if (!memory.is_of_host() && rank < staged_.size()) {
    made.staged = &staged_[rank];
    if (Status status = made.staged->begin(block_bytes); !status.ok()) return status;
  } else {
    auto mapped = model::SealedMemory::open(memory.file.get(), blocks * block_bytes);
    if (!mapped.ok()) return mapped.status();
    made.mapped = *std::move(mapped);
  }
  auto shared = std::make_shared<const Memory>(std::move(made));
  const std::lock_guard lock(mutex_);
  memories_[rank] = std::move(shared);
  return {};
}

void KvServer::forget_memory(std::size_t rank) {
  const std::lock_guard lock(mutex_);
  if (rank < memories_.size()) memories_[rank].reset();
}

std::shared_ptr<const KvServer::Memory> KvServer::memory(std::int32_t rank) const {
  const std::lock_guard lock(mutex_);
  return memories_[static_cast<std::size_t>(rank)];
}

std::string KvServer::refusal(const KvPart& asked) const {
  if (memories_.empty()) return "gives no KV blocks away: it has not --splitwise-role prefill";
  if (asked.rank < 0 || static_cast<std::size_t>(asked.rank) >= memories_.size()) {
    return "has " + std::to_string(memories_.size()) + " ranks, and no rank " + std::to_string(asked.rank);
  }
  const auto own = memory(asked.rank);
  if (own && own->block_bytes != asked.block_bytes) {
    return "has KV blocks of " + std::to_string(own->block_bytes) + " bytes, the other side of " +
           std::to_string(asked.block_bytes);
  }
  return "";
}

KvPart KvServer::part(std::int32_t rank) const {
  const auto own = memory(rank);
  return {rank, own ? own->block_bytes : 0};
}

bool KvServer::copy(const Memory& from, BlockId block, std::span<std::byte> into) {
  if (from.staged != nullptr) return from.staged->read(from.own_life, block, into);
  const auto* const blocks = static_cast<const std::byte*>(from.mapped.data());
  std::memcpy(into.data(), blocks + static_cast<std::size_t>(block) * from.block_bytes, from.block_bytes);
  return true;
}

/// False: the block does not hold what is wanted, or did not all the time.
bool KvServer::read_block(const KvWant& want, const Memory& memory, std::span<std::byte> into) const {
  if (want.block < 0 || static_cast<std::size_t>(want.block) >= memory.blocks || !names_) return false;
  if (want.memory != memory.life || names_->memory() != memory.life || want.block >= names_->end())
    return false;
  const std::uint64_t state = names_->state(want.block);
  ipc::BlockName name;
  if (!names_->read(want.block, name) || name.hash != want.contents) return false;
  if (!copy(memory, want.block, into)) return false;
  // What was copied was read before the entry is read again.
  std::atomic_thread_fence(std::memory_order_acquire);
  return names_->memory() == memory.life && names_->state(want.block) == state;
}

void KvServer::put_answer(const KvWant& want, std::int32_t rank, std::vector<std::byte>& out) const {
  KvAnswerHead head{want.number, KvAnswer::beat};
  out.resize(sizeof head);
  if (want.memory != 0) {
    head.kind = KvAnswer::gone;
    if (const auto from = memory(rank)) {
      out.resize(sizeof head + from->block_bytes);
      const auto block = std::span(out).subspan(sizeof head);
      if (read_block(want, *from, block)) {
        head = {want.number, KvAnswer::block, 0, block.size(), model::checksum(block)};
      } else {
        out.resize(sizeof head);
      }
    }
  }
  std::memcpy(out.data(), &head, sizeof head);
}

std::string KvServer::serve(Stream& stream, std::int32_t rank, const std::stop_token& stop) {
  std::vector<std::byte> out;
  for (std::uint64_t number = 1;; ++number) {
    KvWant want;
    if (auto why = read_all(stream, std::as_writable_bytes(std::span(&want, 1)), stop); !why.empty())
      return why;
    if (want.number != number) return "has sent what is no want of a block";
    put_answer(want, rank, out);
    if (auto why = write_all(stream, out, stop); !why.empty()) return why;
  }
}

}  // namespace troupe::remote
