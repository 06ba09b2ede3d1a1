#pragma once
// The texts that the worker model computes.
#include <cstdint>
#include <span>

#include "actors/messages.h"
#include "tests/scheduler/grammar_model.h"

namespace troupe::test {

/// extend(): the hash of a prefix one token longer. next_token(): the token that follows a prefix.
inline std::uint64_t extend(std::uint64_t prefix, TokenId token) {
  return mix(prefix, static_cast<std::uint64_t>(token) + 1);
}
/// The same for token `at` of a text with images: what an image contains counts.
inline std::uint64_t extend(std::uint64_t prefix, TokenId token, std::span<const SequenceItem> media,
                            std::int32_t at) {
  for (const SequenceItem& item : media) {
    if (item.item.first <= at && at < item.item.end())
      prefix = mix(prefix, item.contents.lo * 64 + static_cast<std::uint64_t>(at - item.item.first));
  }
  return extend(prefix, token);
}
inline TokenId next_token(std::uint64_t prefix, std::uint32_t choice, std::int32_t vocab) {
  return static_cast<TokenId>(mix(prefix, 0x51ull + choice) % static_cast<std::uint64_t>(vocab));
}

}  // namespace troupe::test
