#include "actors/supervisor/kv_memory.h"

#include <sys/stat.h>

#include <charconv>
#include <limits>
#include <string>
#include <utility>

#include "ipc/block_names.h"

namespace troupe::supervisor {

// The life has 64 bits, of which a reader of JSON may lose some.
nlohmann::json KvMemory::members() const {
  nlohmann::json members{{"life", std::to_string(life)}, {"blocks", blocks}, {"block_bytes", block_bytes}};
  if (own_life != 0) members["own_life"] = std::to_string(own_life);
  return members;
}

bool KvMemory::is_of_host() const {
  struct stat st {};
  return fstat(file.get(), &st) == 0 && S_ISREG(st.st_mode);
}

namespace {

/// 0: it is none.
std::uint64_t read_life(const std::string& text) {
  std::uint64_t life = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, life);
  return read.ec == std::errc() && read.ptr == end ? life : 0;
}

}  // namespace

std::optional<KvMemory> kv_memory_of(Packet& packet) {
  KvMemory memory{read_life(packet.text("life")), packet.number("blocks"), packet.number("block_bytes"),
                  std::move(packet.attached), read_life(packet.text("own_life"))};
  struct stat st {};
  if (memory.life == 0 || memory.blocks <= 0 || memory.block_bytes <= 0 ||
      memory.blocks > std::numeric_limits<std::int64_t>::max() / memory.block_bytes || !memory.file ||
      fstat(memory.file.get(), &st) != 0) {
    return std::nullopt;
  }
  // Of a GPU's memory only the driver knows the size.
  if (S_ISREG(st.st_mode) && st.st_size / memory.block_bytes < memory.blocks) return std::nullopt;
  return memory;
}

void RankMemories::set(int rank, int pid, KvMemory memory) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= ranks_.size()) return;
  ranks_[static_cast<std::size_t>(rank)] = {pid, std::move(memory)};
}

bool RankMemories::keep_of(int rank, int pid) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= ranks_.size()) return false;
  Rank& of = ranks_[static_cast<std::size_t>(rank)];
  if (of.pid == pid || !of.memory) return false;
  of.memory.reset();
  return true;
}

std::uint64_t RankMemories::life() const {
  std::uint64_t life = 0;
  for (const Rank& rank : ranks_) {
    if (!rank.memory) return 0;
    life = &rank == &ranks_.front() ? rank.memory->life : ipc::lives_together(life, rank.memory->life);
  }
  return life;
}

nlohmann::json RankMemories::members(std::size_t rank) const {
  const KvMemory& memory = *ranks_[rank].memory;
  return KvMemory{life(), memory.blocks, memory.block_bytes, {}, memory.life}.members();
}

}  // namespace troupe::supervisor
