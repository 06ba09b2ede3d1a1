#pragma once
// Tokens that text spells verbatim. They are found before any other step.
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
  bool special = false;      ///< only trusted text may spell it, and skip_special_tokens leaves it out
  bool guarded = false;      ///< only trusted text may spell it, but it is printed ("<think>")
  bool normalized = false;   ///< searched for after normalisation, if the tokenizer normalises
  bool single_word = false;  ///< not inside a longer word
  bool lstrip = false;       ///< takes the whitespace before it
  bool rstrip = false;       ///< takes the whitespace after it
};

/// True if a string looks like markup for the model ("<think>", "[SEP]"); false for runs of blanks, digits
/// and words. For files that do not say which of their tokens are special.
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

  /// Splits the text at the tokens that `may` accepts for their byte range: the leftmost, and of these the
  /// longest.
  using May = std::function<bool(const AddedToken&, std::size_t begin, std::size_t end)>;
  std::vector<AddedPart> split(std::string_view text, const May& may) const;

  /// The first token spelled at or after `from`, whatever its flags; begin == text.size() when there is none.
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
