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
  return {{"life", std::to_string(life)}, {"blocks", blocks}, {"block_bytes", block_bytes}};
}

std::optional<KvMemory> kv_memory_of(Packet& packet) {
  KvMemory memory{0, packet.number("blocks"), packet.number("block_bytes"), std::move(packet.attached)};
  const std::string life = packet.text("life");
  const char* const end = life.data() + life.size();
  const auto read = std::from_chars(life.data(), end, memory.life);
  struct stat st {};
  if (read.ec != std::errc() || read.ptr != end || memory.life == 0 || memory.blocks <= 0 ||
      memory.block_bytes <= 0 ||
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
  return KvMemory{life(), memory.blocks, memory.block_bytes, {}}.members();
}

}  // namespace troupe::supervisor
