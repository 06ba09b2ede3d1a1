#pragma once
// Shared by both kinds of tokenizer: the table of pieces, the added tokens, and the rule of trust.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/added.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary_image.h"

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
  /// `shared`: an image that this tokenizer uses if it has the same texts; else, or if it is null, it makes
  /// its own.
  explicit VocabularyTokenizer(Vocabulary vocabulary,
                               std::shared_ptr<const VocabularyImage> shared = nullptr);

  int vocab_size() const override { return texts_->vocab_size(); }
  using Tokenizer::encode;
  std::vector<TokenId> encode(std::span<const TextSpan> spans) const override;
  std::string_view token_bytes(TokenId id) const override { return texts_->token_bytes(id); }
  bool is_special(TokenId id) const override { return texts_->is_special(id); }
  std::optional<TokenId> token_id(std::string_view piece) const override { return texts_->token_id(piece); }
  const std::vector<SpecialToken>& special_tokens() const override { return special_tokens_; }
  std::optional<TokenId> bos_id() const override { return texts_->bos_id(); }
  std::optional<TokenId> eos_id() const override { return texts_->eos_id(); }
  std::optional<TokenId> pad_id() const override { return texts_->pad_id(); }

 protected:
  /// Encodes text without added tokens, and appends. Must never yield an id for which is_reserved() holds,
  /// except the unknown token. `first` means that the text starts the whole input.
  virtual void encode_ordinary(std::string_view text, bool first, std::vector<TokenId>& out) const = 0;

  /// True if only trusted text may yield this id.
  bool is_reserved(TokenId id) const {
    return id >= 0 && static_cast<std::size_t>(id) < reserved_.size() &&
           reserved_[static_cast<std::size_t>(id)];
  }
  const AddedTokens& added() const { return added_; }

 private:
  std::shared_ptr<const VocabularyImage> texts_;
  const AddedTokens added_;
  std::vector<bool> reserved_;
  std::vector<SpecialToken> special_tokens_;
};

}  // namespace troupe
