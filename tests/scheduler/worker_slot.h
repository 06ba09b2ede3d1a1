#pragma once
// A sequence in the worker model, and what is drafted for it.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "actors/messages.h"
#include "ipc/wire.h"
#include "tests/scheduler/text_model.h"

namespace troupe::test {

/// The output token of a sequence that must come, or -1.
using Oracle = std::function<TokenId(const RequestKey&, std::int32_t output)>;

struct WorkerSlot {
  SlotRef ref{};
  RequestKey key{};
  std::int32_t prompt_tokens = 0, known = 0, max_tokens = 0, proposes = 0, sent = 0, run = -1;
  wire::Sampling sampling{};
  std::vector<SequenceItem> media;
  std::vector<TokenId> tokens;        ///< ids received or sampled
  std::vector<TokenId> proposed;      ///< what the last result said
  std::vector<std::uint64_t> prefix;  ///< prefix[p]: hash of tokens 0…p
  std::vector<BlockId> blocks;

  void append(TokenId token) {
    prefix.push_back(
        extend(prefix.empty() ? 0 : prefix.back(), token, media, static_cast<std::int32_t>(tokens.size())));
    tokens.push_back(token);
  }

  /// Proposes up to as many as it may; most are right.
  void guess(std::uint64_t step, std::int32_t vocab, const Oracle& oracle) {
    const auto outputs = static_cast<std::int32_t>(tokens.size()) - prompt_tokens;
    const auto count =
        static_cast<std::int32_t>(mix(step, ref.slot) % static_cast<std::uint64_t>(proposes + 1));
    for (std::int32_t i = 0; i < count; ++i) {
      const TokenId right = oracle ? oracle(key, outputs + i) : -1;
      const std::uint64_t dice = mix(step * 31 + static_cast<std::uint64_t>(i), ref.slot);
      const auto any = static_cast<TokenId>(dice / 8 % static_cast<std::uint64_t>(vocab));
      proposed.push_back(right >= 0 && dice % 5 != 0 ? right : any);
    }
  }

  /// What a row verifies: of what was proposed the first `most`; without proposals up to so many, of which
  /// three of four are right.
  std::vector<TokenId> drafts(std::uint64_t step, std::int32_t vocab, std::int32_t most) const {
    std::vector<TokenId> made = proposed;
    if (proposes > 0) {
      made.resize(std::min(made.size(), static_cast<std::size_t>(most)));
      return made;
    }
    std::uint64_t hash = prefix.back();
    for (std::uint64_t n = mix(step, ref.slot) % static_cast<std::uint64_t>(most + 1); n > 0; --n) {
      const TokenId right = next_token(hash, sampling.choice, vocab);
      made.push_back(mix(step, hash) % 4 == 0 ? (right + 1) % vocab : right);
      hash = extend(hash, made.back(), media, static_cast<std::int32_t>(tokens.size() + made.size()) - 1);
    }
    return made;
  }
};

}  // namespace troupe::test
