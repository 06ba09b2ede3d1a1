#pragma once
// Drafts what followed when the last tokens of a sequence stood in its prompt or answer before.
#include <cstdint>
#include <span>
#include <vector>

#include "model/drafts/drafter.h"

namespace troupe::model {

/// Looks up the last n tokens, n from `longest` down to `shortest`, and drafts what stands behind the latest
/// place at which the longest known n-gram occurs. A draft that reaches the end of the sequence goes on with
/// what it has drafted, so a short cycle is continued.
///
/// The places of each n-gram of the shortest length are linked, so a call costs the tokens that are new and a
/// bounded number of places. Two numbers per token of a sequence are kept.
class NgramDrafter final : public Drafter {
 public:
  /// Requires 1 <= shortest <= longest.
  NgramDrafter(int slots, int shortest, int longest);

  void start(std::uint32_t slot, std::int32_t prompt_tokens, std::span<const TokenId> prediction) override;
  void rewind(std::uint32_t slot) override;
  Drafts draft(std::uint32_t slot, std::span<const TokenId> ids, std::span<TokenId> out) override {
    return {draft_behind(slot, ids, {}, out)};
  }
  /// As if the sequence went on with `guessed`. Returns how many.
  std::size_t draft_behind(std::uint32_t slot, std::span<const TokenId> ids, std::span<const TokenId> guessed,
                           std::span<TokenId> out);

 private:
  static constexpr std::int32_t kNone = -1;
  /// Places that one call compares.
  static constexpr int kMostPlaces = 32;

  struct Index {
    std::int32_t ends = 0;              ///< n-grams that end before here are in the index
    std::vector<std::int32_t> earlier;  ///< by end: an earlier n-gram of the same bucket, or kNone
    std::vector<std::int32_t> newest;   ///< by bucket; a power of two of them
  };

  static std::size_t bucket(const Index& index, std::span<const TokenId> ngram);
  void add(Index& index, std::span<const TokenId> ids) const;
  std::int32_t common(std::span<const TokenId> ids, std::int32_t end, std::span<const TokenId> last) const;

  const std::int32_t shortest_;
  const std::int32_t longest_;
  std::vector<Index> indexes_;
  std::vector<TokenId> last_;  ///< scratch: the last ids, and what is guessed behind them
};

}  // namespace troupe::model
