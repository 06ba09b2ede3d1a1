#pragma once
// Makes draft tokens: guesses at what a sequence goes on with, which the next step verifies.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"

namespace troupe::model {

/// Most draft tokens of a row.
inline constexpr std::int32_t kMostDrafts = 8;

/// For one thread. Every rank of a model must make the same drafts: they may depend on ids and logits alone.
class Drafter {
 public:
  virtual ~Drafter() = default;

  /// The slot holds another sequence from now on.
  virtual void start(std::uint32_t slot) = 0;

  /// Writes tokens that may follow `ids`, which are all of the slot's sequence, to the front of `out` and
  /// returns how many. From call to call the ids of a sequence only grow.
  virtual std::size_t draft(std::uint32_t slot, std::span<const TokenId> ids, std::span<TokenId> out) = 0;
};

}  // namespace troupe::model
