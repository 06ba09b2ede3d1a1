#include "actors/remote/staged_blocks.h"

#include <cstring>

namespace troupe::remote {
namespace {

constexpr Duration kStagingPatience = std::chrono::seconds(1);
constexpr std::size_t kSlot = 0;  // one block at a time: the network is slower than the copy

}  // namespace

Status StagedBlocks::begin(std::uint64_t block_bytes) {
  const std::lock_guard lock(mutex_);
  return asked_.begin(block_bytes);
}

bool StagedBlocks::read(std::uint64_t life, BlockId block, std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  if (into.size() != asked_.block_bytes()) return false;
  asked_.want(kSlot, life, block);
  const bool has_come = asked_.await(kSlot, Clock::now() + kStagingPatience).value_or(false);
  if (has_come) std::memcpy(into.data(), asked_.contents(kSlot).data(), into.size());
  asked_.give_back(kSlot);
  return has_come;
}

}  // namespace troupe::remote
