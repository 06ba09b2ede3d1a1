#include "ipc/block_names.h"

#include <sys/random.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "ipc/file_header.h"
#include "ipc/system_failure.h"

namespace troupe::ipc {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::uint64_t kMostEntries = std::numeric_limits<BlockId>::max();

std::uint64_t bytes_of(std::uint64_t entries) {
  return kBlockNamesHeaderBytes + entries * sizeof(BlockNameEntry);
}

}  // namespace

Result<NamesKey> BlockNames::make_key() {
  NamesKey key;
  if (getrandom(&key, sizeof key, 0) != sizeof key) return system_failure("the system gives no random bits");
  return key;
}

Result<Fd> BlockNames::create(std::uint64_t entries, const std::optional<NamesKey>& key) {
  if (entries == 0 || entries > kMostEntries) {
    return invalid("a table of block names has " + std::to_string(entries) +
                   " entries; it must have from 1 to " + std::to_string(kMostEntries));
  }
  const Result<NamesKey> named_by = key ? Result<NamesKey>(*key) : make_key();
  if (!named_by) return named_by.status();
  // The entries are zeros already, which is how an empty one looks.
  return make_file_with<BlockNamesHeader>("troupe-names", bytes_of(entries), kBlockNamesMagic,
                                          [&](BlockNamesHeader& header) {
                                            header.entry_bytes = sizeof(BlockNameEntry);
                                            header.entries = entries;
                                            header.key = *named_by;
                                          });
}

Result<BlockNames> BlockNames::attach(int fd, Access access) {
  auto region = map_memory_file(fd, kBlockNamesHeaderBytes, access);
  if (!region) return region.status();
  const std::uint64_t bytes = (*region)->get_size();
  const auto& h = *static_cast<const BlockNamesHeader*>((*region)->get_address());
  if (Status s = check_header(h, kBlockNamesMagic); !s.ok()) return s;
  if (h.entry_bytes != sizeof(BlockNameEntry) || h.entries == 0 || h.entries > kMostEntries ||
      bytes_of(h.entries) != bytes) {
    return not_ours("its layout does not fit its " + std::to_string(bytes) + " bytes");
  }
  return BlockNames(std::move(*region));
}

BlockNames::BlockNames(MappedRegion region)
    : region_(std::move(region)), header_(static_cast<BlockNamesHeader*>(region_->get_address())) {
  auto* data = static_cast<std::byte*>(region_->get_address()) + kBlockNamesHeaderBytes;
  entries_ = reinterpret_cast<BlockNameEntry*>(data);
}

BlockNames::BlockNames(BlockNames&&) noexcept = default;
BlockNames& BlockNames::operator=(BlockNames&&) noexcept = default;
BlockNames::~BlockNames() = default;

BlockId BlockNames::end() const {
  return static_cast<BlockId>(std::min(header_->used.load(std::memory_order_acquire), header_->entries));
}

bool BlockNames::read(BlockId block, BlockName& out) const {
  if (block < 0 || block >= end()) return false;
  const BlockNameEntry& entry = at(static_cast<std::uint64_t>(block));
  const std::uint64_t before = entry.state.load(std::memory_order_acquire);
  if (before % 2 == 0) return false;
  out.hash = {entry.hi.load(kRelaxed), entry.lo.load(kRelaxed)};
  out.place = static_cast<std::int32_t>(entry.place.load(kRelaxed));
  std::atomic_thread_fence(std::memory_order_acquire);
  return entry.state.load(kRelaxed) == before && out.hash != BlockHash{};
}

/// The id of the memory goes first and comes last: a table whose clearing was cut short is about no memory.
void BlockNames::begin(std::uint64_t memory) {
  header_->memory.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (BlockId block = 0, all = end(); block < all; ++block) clear(block);
  header_->used.store(0, std::memory_order_release);
  header_->memory.store(memory, std::memory_order_release);
}

void BlockNames::set(BlockId block, const BlockName& name) {
  TROUPE_CHECK(block >= 0 && name.hash != BlockHash{});
  const auto index = static_cast<std::uint64_t>(block);
  if (index >= header_->entries) return;
  clear(block);
  if (index >= header_->used.load(kRelaxed)) header_->used.store(index + 1, std::memory_order_release);
  BlockNameEntry& entry = at(index);
  entry.hi.store(name.hash.hi, kRelaxed);
  entry.lo.store(name.hash.lo, kRelaxed);
  entry.place.store(static_cast<std::uint32_t>(name.place), kRelaxed);
  entry.state.store(entry.state.load(kRelaxed) + 1, std::memory_order_release);
}

void BlockNames::clear(BlockId block) {
  if (block < 0 || block >= end()) return;
  BlockNameEntry& entry = at(static_cast<std::uint64_t>(block));
  const std::uint64_t state = entry.state.load(kRelaxed);
  if (state % 2 == 0) return;
  entry.state.store(state + 1, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);  // before any word of the next name
}

}  // namespace troupe::ipc
