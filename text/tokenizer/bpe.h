#pragma once
// Byte-pair encoding of one word: starting from its bytes (or characters), the pair of neighbours with the
// lowest rank is merged, the leftmost of equals first, until no neighbours have a merge. Candidates wait in a
// heap and symbols form a linked list, so that a word of n bytes costs O(n log n) in every case.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "text/tokenizer/word_cache.h"

namespace troupe {

class BytePairEncoder {
 public:
  struct Options {
    std::array<TokenId, 256> byte_ids;  ///< token of each byte, -1 where there is none
    /// Words are bytes, each its own first symbol. Otherwise first symbols are characters, looked up in
    /// `characters`, and bytes serve only those that are not there.
    bool byte_level = true;
    std::unordered_map<std::string, TokenId> characters;
    TokenId unknown = -1;       ///< for a character with neither; -1 drops it
    bool fuse_unknown = false;  ///< a run of unknowns is one token
    /// Words that are whole tokens skip the merges ("ignore_merges").
    std::unordered_map<std::string, TokenId> whole_words;
  };

  explicit BytePairEncoder(Options options);

  /// `left` then `right` become `merged`; rank = number of earlier calls. A repeated pair keeps its first
  /// rank.
  void add_merge(TokenId left, TokenId right, TokenId merged);

  /// Memory reused from word to word within one call of a tokenizer.
  struct Scratch {
    struct Symbol {
      TokenId id;
      std::int32_t previous, next;  // -1 at the ends
    };
    struct Candidate {
      std::uint32_t rank;
      std::int32_t at;  // index of the left symbol
      TokenId right;    // id of its right neighbour when the candidate was made
      TokenId left;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Merge {
    std::uint64_t pair;
    std::uint32_t rank;
    TokenId merged;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  const Merge* find(TokenId left, TokenId right) const;
  void grow();
  void first_symbols(std::string_view word, std::vector<Scratch::Symbol>& symbols) const;
  void merge(Scratch& scratch) const;

  const Options options_;
  std::vector<Merge> table_;  // open addressing, a power of two, at most half full
  std::uint32_t merges_ = 0;
  std::unique_ptr<WordCache> cache_ = std::make_unique<WordCache>();
};

}  // namespace troupe
