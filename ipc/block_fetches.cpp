#include "ipc/block_fetches.h"

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <string>
#include <utility>

#include "ipc/file_header.h"

namespace troupe::ipc {
namespace {

constexpr std::uint64_t kFetchesMagic = 0x3168637465667274;  // "trfetch1"
constexpr std::uint64_t kFetchPage = 4096;
constexpr std::uint64_t kFetchTurn = 4;  // the phase is below it
constexpr std::uint64_t kFirstFetchTurn = kFetchTurn;

constexpr std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kFetchPage - 1) / kFetchPage * kFetchPage;
}
constexpr std::uint64_t kFetchesHeaderBytes = whole_pages(sizeof(BlockFetchesHeader));

constexpr FetchPhase fetch_phase_of(std::uint64_t state) {
  return static_cast<FetchPhase>(state % kFetchTurn);
}
constexpr std::uint64_t with(std::uint64_t state, FetchPhase phase) {
  return state - state % kFetchTurn + static_cast<std::uint64_t>(phase);
}

}  // namespace

Result<Fd> BlockFetches::create(std::uint64_t bytes) {
  const std::uint64_t whole = kFetchesHeaderBytes + whole_pages(bytes);
  return make_file_with<BlockFetchesHeader>("troupe-fetches", whole, kFetchesMagic,
                                            [whole](BlockFetchesHeader& header) { header.bytes = whole; });
}

Result<BlockFetches> BlockFetches::attach(int fd) {
  auto region = map_memory_file(fd, kFetchesHeaderBytes);
  if (!region) return region.status();
  const auto& h = *static_cast<const BlockFetchesHeader*>((*region)->get_address());
  if (Status s = check_header(h, kFetchesMagic); !s.ok()) return s;
  if (Status s = check_bytes(h.bytes, (*region)->get_size()); !s.ok()) return s;
  return BlockFetches(std::move(*region));
}

BlockFetches::BlockFetches(MappedRegion region)
    : region_(std::move(region)),
      header_(static_cast<BlockFetchesHeader*>(region_->get_address())),
      data_(static_cast<std::byte*>(region_->get_address()) + kFetchesHeaderBytes),
      data_bytes_(region_->get_size() - kFetchesHeaderBytes) {}

BlockFetches::BlockFetches(BlockFetches&&) noexcept = default;
BlockFetches& BlockFetches::operator=(BlockFetches&&) noexcept = default;
BlockFetches::~BlockFetches() = default;

std::uint64_t BlockFetches::stride(std::uint64_t block_bytes) const {
  return block_bytes == 0 || block_bytes > data_bytes_ ? 0 : whole_pages(block_bytes);
}

std::size_t BlockFetches::slots(std::uint64_t block_bytes) const {
  const std::uint64_t each = stride(block_bytes);
  return each == 0 ? 0 : static_cast<std::size_t>(std::min<std::uint64_t>(kMostSlots, data_bytes_ / each));
}

Status BlockFetches::begin(std::uint64_t block_bytes) {
  if (slots(block_bytes) == 0) {
    return invalid("a KV block of another machine has " + std::to_string(block_bytes) +
                   " bytes; it can have from 1 to " + std::to_string(data_bytes_));
  }
  for (std::size_t slot = 0; slot < kMostSlots; ++slot) give_back(slot);
  header_->block_bytes.store(block_bytes, std::memory_order_release);
  header_->giver.ring();
  return {};
}

void BlockFetches::want(std::size_t slot, std::uint64_t memory, BlockId block) {
  FetchSlot& at = header_->slots[slot];
  at.memory.store(memory, std::memory_order_relaxed);
  at.block.store(block, std::memory_order_relaxed);
  const std::uint64_t state = std::max(at.state.load(std::memory_order_relaxed), kFirstFetchTurn);
  at.state.store(with(state, FetchPhase::wanted), std::memory_order_release);
  header_->giver.ring();
}

std::optional<bool> BlockFetches::await(std::size_t slot, TimePoint deadline) {
  const FetchSlot& at = header_->slots[slot];
  const auto phase = [&at] { return fetch_phase_of(at.state.load(std::memory_order_acquire)); };
  const auto known = [&] {
    return phase() != FetchPhase::wanted || header_->connected.load(std::memory_order_acquire) == 0;
  };
  if (!header_->asker.wait(deadline, kDefaultSpin, known)) return {};
  return phase() == FetchPhase::ready;
}

std::span<const std::byte> BlockFetches::contents(std::size_t slot) const {
  const std::uint64_t bytes = block_bytes();
  return {data_ + slot * stride(bytes), static_cast<std::size_t>(bytes)};
}

void BlockFetches::give_back(std::size_t slot) {
  std::atomic<std::uint64_t>& state = header_->slots[slot].state;
  state.store(with(state.load(std::memory_order_relaxed) + kFetchTurn, FetchPhase::free),
              std::memory_order_release);
}

void BlockFetches::set_connected(bool on) {
  header_->connected.store(on ? 1 : 0, std::memory_order_release);
  header_->asker.ring();
}

std::optional<BlockFetches::Want> BlockFetches::find_want(std::span<const std::uint64_t> seen) const {
  for (std::size_t slot = 0; slot < kMostSlots; ++slot) {
    const FetchSlot& at = header_->slots[slot];
    const std::uint64_t state = at.state.load(std::memory_order_acquire);
    if (fetch_phase_of(state) != FetchPhase::wanted || state == seen[slot]) continue;
    return Want{slot, state, at.memory.load(std::memory_order_relaxed),
                at.block.load(std::memory_order_relaxed)};
  }
  return {};
}

std::optional<BlockFetches::Want> BlockFetches::next_want(std::span<std::uint64_t> seen, TimePoint deadline) {
  const auto ready = [&] { return find_want(seen).has_value(); };
  if (!header_->giver.wait(deadline, Duration::zero(), ready)) return {};
  const std::optional<Want> want = find_want(seen);
  if (want) seen[want->slot] = want->state;
  return want;
}

std::span<std::byte> BlockFetches::room(std::size_t slot, std::uint64_t bytes) {
  if (bytes != block_bytes() || slot >= slots(bytes)) return {};
  return {data_ + slot * stride(bytes), static_cast<std::size_t>(bytes)};
}

void BlockFetches::answer(const Want& want, bool has_come) {
  std::uint64_t expected = want.state;
  const std::uint64_t next = with(want.state, has_come ? FetchPhase::ready : FetchPhase::failed);
  if (header_->slots[want.slot].state.compare_exchange_strong(expected, next, std::memory_order_release,
                                                              std::memory_order_relaxed)) {
    header_->asker.ring();
  }
}

}  // namespace troupe::ipc
