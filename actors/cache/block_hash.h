#pragma once
// Names for the contents of KV blocks. The KV of a position depends on every token up to it, so a block's
// name is a chain: the hash of the block before it and of its own tokens. The hash is keyed with random bits
// that clients never see. Without them no one can make two prompts with the same name, and so use the KV of
// another client.
#include <cstddef>
#include <span>
#include <string_view>

#include "base/ids.h"

namespace troupe {

/// 128 secret random bits, drawn once per instance.
struct HashKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

/// Drawn now.
HashKey random_key();

/// SipHash-2-4 with 128 bits of output.
BlockHash siphash(const HashKey& key, std::span<const std::byte> bytes);

/// Extends chains. Immutable; any thread may use it.
class BlockHasher {
 public:
  explicit BlockHasher(const HashKey& key) : key_(key) {}

  /// Start of the chains of requests with this salt; different salts share no block. An empty salt: without
  /// one.
  BlockHash root(std::string_view salt) const;

  /// The block that follows `previous` and holds `tokens`. `media` are the hashes of images or other inputs
  /// that stand for some of these tokens, in order.
  BlockHash next(const BlockHash& previous, std::span<const TokenId> tokens,
                 std::span<const BlockHash> media = {}) const;

 private:
  HashKey key_;
};

}  // namespace troupe
