#include "actors/remote/kv_server.h"

#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "base/counted.h"
#include "model/swap/checksum.h"

namespace troupe::remote {

KvServer::KvServer(std::size_t ranks, const model::KvLayout& layout,
                   std::shared_ptr<const ipc::BlockNames> names, std::vector<ipc::BlockFetches> staged)
    : layout_(layout), names_(std::move(names)), memories_(ranks) {
  for (ipc::BlockFetches& asked : staged) staged_.emplace_back(std::move(asked));
}

Status KvServer::set_memory(std::size_t rank, const supervisor::KvMemory& memory) {
  forget_memory(rank);
  if (rank >= memories_.size()) return invalid("there is no rank " + std::to_string(rank));
  const auto blocks = static_cast<std::size_t>(memory.blocks);
  const auto block_bytes = static_cast<std::size_t>(memory.block_bytes);
  if (const std::size_t own = layout_.block_bytes(static_cast<int>(ranks())); block_bytes != own) {
    return invalid("a KV block of the worker has " + std::to_string(block_bytes) + " bytes, not " +
                   std::to_string(own) + " as this model's have");
  }
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

std::string KvServer::refusal(const KvPart& asked) const {
  if (memories_.empty()) return "gives no KV blocks away: it has not --splitwise-role prefill";
  if (!model::divides_kv_heads(layout_.kv_heads, asked.ranks) || asked.rank < 0 ||
      asked.rank >= asked.ranks) {
    return "cannot divide the model's " + std::to_string(layout_.kv_heads) + " KV heads for rank " +
           std::to_string(asked.rank) + " of " + std::to_string(asked.ranks);
  }
  if (const std::size_t bytes = layout_.block_bytes(asked.ranks); bytes != asked.block_bytes) {
    return "gives KV blocks of " + std::to_string(bytes) + " bytes to each of " +
           counted(asked.ranks, "rank") + ", those of the other side have " +
           std::to_string(asked.block_bytes);
  }
  return "";
}

/// Empty: the memory of a rank is not there.
std::vector<KvServer::Source> KvServer::sources(std::span<const model::KvSlice> slices) const {
  std::vector<Source> sources;
  const std::lock_guard lock(mutex_);
  for (const model::KvSlice& slice : slices) {
    const auto& memory = memories_[static_cast<std::size_t>(slice.rank)];
    if (!memory) return {};
    sources.push_back({slice, memory});
  }
  return sources;
}

/// False: a worker that has to copy its block has not.
bool KvServer::copy(std::span<const Source> sources, BlockId block, std::span<std::byte> into) {
  std::map<const Memory*, std::vector<std::byte>> staged;  // whole blocks, each copied once
  for (const auto& [slice, memory] : sources) {
    if (memory->staged == nullptr) {
      const auto* const blocks = static_cast<const std::byte*>(memory->mapped.data());
      model::copy_slice(slice, blocks + static_cast<std::size_t>(block) * memory->block_bytes, into.data());
      continue;
    }
    if (slice.bytes == into.size()) return memory->staged->read(memory->own_life, block, into);
    const auto [whole, is_new] = staged.try_emplace(memory.get(), memory->block_bytes);
    if (is_new && !memory->staged->read(memory->own_life, block, whole->second)) return false;
    model::copy_slice(slice, whole->second.data(), into.data());
  }
  return true;
}

/// False: the block does not hold what is wanted, or did not all the time.
bool KvServer::read_block(const KvWant& want, std::span<const Source> sources,
                          std::span<std::byte> into) const {
  if (sources.empty() || want.block < 0 || !names_) return false;
  for (const Source& source : sources) {
    if (source.memory->life != want.memory || static_cast<std::size_t>(want.block) >= source.memory->blocks)
      return false;
  }
  if (names_->memory() != want.memory || want.block >= names_->end()) return false;
  const std::uint64_t state = names_->state(want.block);
  ipc::BlockName name;
  if (!names_->read(want.block, name) || name.hash != want.contents) return false;
  if (!copy(sources, want.block, into)) return false;
  // What was copied was read before the entry is read again.
  std::atomic_thread_fence(std::memory_order_acquire);
  return names_->memory() == want.memory && names_->state(want.block) == state;
}

/// `bytes` is the size of a block there.
void KvServer::put_answer(const KvWant& want, std::span<const Source> sources, std::size_t bytes,
                          std::vector<std::byte>& out) const {
  KvAnswerHead head{want.number, KvAnswer::beat};
  out.resize(sizeof head);
  if (want.memory != 0) {
    out.resize(sizeof head + bytes);
    const auto block = std::span(out).subspan(sizeof head);
    head.kind = KvAnswer::gone;
    if (read_block(want, sources, block)) {
      head = {want.number, KvAnswer::block, 0, bytes, model::checksum(block)};
    } else {
      out.resize(sizeof head);
    }
  }
  std::memcpy(out.data(), &head, sizeof head);
}

std::string KvServer::serve(Stream& stream, const KvPart& asked, const std::stop_token& stop) {
  const std::vector<model::KvSlice> slices =
      model::kv_slices(layout_, {asked.rank, asked.ranks}, static_cast<int>(ranks()));
  const std::size_t bytes = layout_.block_bytes(asked.ranks);
  std::vector<std::byte> out;
  for (std::uint64_t number = 1;; ++number) {
    KvWant want;
    if (auto why = read_all(stream, std::as_writable_bytes(std::span(&want, 1)), stop); !why.empty())
      return why;
    if (want.number != number) return "has sent what is no want of a block";
    put_answer(want, sources(slices), bytes, out);
    if (auto why = write_all(stream, out, stop); !why.empty()) return why;
  }
}

}  // namespace troupe::remote
