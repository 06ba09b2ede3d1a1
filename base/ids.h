#pragma once
// Identities that more than one module speaks of.
#include <compare>
#include <cstdint>
#include <functional>

namespace troupe {

using TokenId = std::int32_t;
using BlockId = std::int32_t;  ///< one KV block; spans all layers
inline constexpr BlockId kNoBlock = -1;

/// 128 random bits that name one generated sequence (one choice of one request) for its whole life,
/// across restarts of any part. Slots and generations are local names for it on a worker.
struct RequestKey {
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;
  auto operator<=>(const RequestKey&) const = default;
};

/// A sequence's place on a worker. A slot is reused; its generation never is within an epoch, so a
/// late record about an earlier tenant is recognised and dropped.
struct SlotRef {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
  auto operator<=>(const SlotRef&) const = default;
};

/// 128-bit keyed hash of a sequence's tokens from the first to the end of one full KV block. Equal hashes
/// mean equal contents. Zero: of no block.
struct BlockHash {
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;
  auto operator<=>(const BlockHash&) const = default;
};

}  // namespace troupe

template <>
struct std::hash<troupe::RequestKey> {
  std::size_t operator()(const troupe::RequestKey& key) const noexcept {
    return static_cast<std::size_t>(key.hi ^ (key.lo * 0x9e3779b97f4a7c15ull));
  }
};
