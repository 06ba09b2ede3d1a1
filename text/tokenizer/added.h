#pragma once
// Tokens that text names verbatim: found before anything else looks at the text.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace troupe {

struct AddedToken {
  TokenId id = 0;
  std::string text;          ///< not empty
  bool special = false;      ///< only trusted text may name it, and skip_special_tokens leaves it out
  bool guarded = false;      ///< only trusted text may name it, but it is printed ("<think>")
  bool normalized = false;   ///< looked for after normalisation, where the tokenizer normalises
  bool single_word = false;  ///< not inside a longer word
  bool lstrip = false;       ///< takes the whitespace before it
  bool rstrip = false;       ///< takes the whitespace after it
};

/// Whether a string looks like markup that speaks to the model ("<think>", "[SEP]"), for files that do not say
/// which of their tokens are special; runs of blanks, digits and words are not.
bool is_markup(std::string_view text);

/// A part of a text: an added token, or what lies between two.
struct AddedPart {
  std::size_t begin = 0;
  std::size_t end = 0;
  const AddedToken* token = nullptr;  ///< null for ordinary text
};

/// Finds added tokens in time linear in the text (times the length of the longest common beginning).
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Splits the text at the leftmost, there longest, tokens that `may` accepts for the given byte range.
  using May = std::function<bool(const AddedToken&, std::size_t begin, std::size_t end)>;
  std::vector<AddedPart> split(std::string_view text, const May& may) const;

  /// The first place at or after `from` where a token is spelled, whatever its flags; begin == text.size()
  /// when there is none.
  AddedPart find(std::string_view text, std::size_t from) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at, const May& may) const;

  // A trie: edges by (node, byte); terminal_[node] is a token's index or -1. Node 0 is the root.
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<int> terminal_{-1};
  std::vector<bool> starts_ = std::vector<bool>(256, false);  // whether a token starts with the byte
};

}  // namespace troupe
