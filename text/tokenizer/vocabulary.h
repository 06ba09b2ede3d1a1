#pragma once
// Shared by both kinds of tokenizer: the table of pieces, the added tokens, and the rule of trust.
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/added.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

/// The ids and strings of a tokenizer, filled by its loader.
struct Vocabulary {
  std::vector<std::string> bytes;  ///< by id: what the token prints; empty where there is no token
  std::vector<AddedToken> added;   ///< unique by text
  std::optional<TokenId> bos, eos, pad;

  /// Makes room for `id` and sets its bytes. False when the id is negative or above the limit.
  bool set(TokenId id, std::string text);
};

/// Largest id accepted from a file, so that a damaged one cannot exhaust the memory.
inline constexpr TokenId kMaxTokenId = 4'000'000;

/// Stands for a blank in the pieces of SentencePiece vocabularies: U+2581.
inline constexpr std::string_view kBlank = "\xE2\x96\x81";

class VocabularyTokenizer : public Tokenizer {
 public:
  explicit VocabularyTokenizer(Vocabulary vocabulary);

  int vocab_size() const override { return static_cast<int>(bytes_.size()); }
  using Tokenizer::encode;
  std::vector<TokenId> encode(std::span<const TextSpan> spans) const override;
  std::string_view token_bytes(TokenId id) const override;
  bool is_special(TokenId id) const override;
  std::optional<TokenId> token_id(std::string_view piece) const override;
  const std::vector<SpecialToken>& special_tokens() const override { return special_tokens_; }
  std::optional<TokenId> bos_id() const override { return bos_; }
  std::optional<TokenId> eos_id() const override { return eos_; }
  std::optional<TokenId> pad_id() const override { return pad_; }

 protected:
  /// Encodes text without added tokens, and appends. Must never yield an id for which is_reserved() holds,
  /// except the unknown token. `first` means that the text starts the whole input.
  virtual void encode_ordinary(std::string_view text, bool first, std::vector<TokenId>& out) const = 0;

  /// True if only trusted text may yield this id.
  bool is_reserved(TokenId id) const { return in(id) && reserved_[static_cast<std::size_t>(id)]; }
  const AddedTokens& added() const { return added_; }

 private:
  bool in(TokenId id) const { return id >= 0 && static_cast<std::size_t>(id) < bytes_.size(); }

  const std::vector<std::string> bytes_;
  const AddedTokens added_;
  const std::optional<TokenId> bos_, eos_, pad_;
  std::vector<bool> special_;
  std::vector<bool> reserved_;
  std::vector<SpecialToken> special_tokens_;
  std::unordered_map<std::string_view, TokenId> ids_;  // views of bytes_
};

}  // namespace troupe
