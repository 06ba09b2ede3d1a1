#pragma once
// What the tokens of a vocabulary print, as one block of bytes. Processes map it read-only instead of each
// holding strings and tables of its own.
//
//   header │ offsets: vocab_size + 1 × u32 │ order: spelled × u32 │ flags: vocab_size × u8 │ texts
//
// The text of token i is texts[offsets[i], offsets[i + 1]). `order` has the ids that have a text, sorted by
// it; of those with the same text the one that token_id() finds comes first. Numbers are those of the
// machine: the block never leaves it. Both sides are the same build.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

/// Immutable; any number of threads may use one.
class VocabularyImage final : public TokenTexts {
 public:
  /// The image of the same texts. Equal texts have equal bytes.
  static std::string bytes_of(const TokenTexts& texts);

  /// A view of `bytes`, which `owner` keeps valid. Checks the header alone, in constant time: no contents of
  /// the rest can make a call read outside of `bytes`, but a damaged image has wrong texts. invalid_argument
  /// when the header does not fit.
  static Result<std::shared_ptr<const VocabularyImage>> view(std::span<const std::byte> bytes,
                                                             std::shared_ptr<const void> owner);

  /// Of texts of this process alone.
  static std::shared_ptr<const VocabularyImage> copy_of(const TokenTexts& texts);

  int vocab_size() const override { return static_cast<int>(flags_.size()); }
  std::string_view token_bytes(TokenId id) const override;
  bool is_special(TokenId id) const override;
  std::optional<TokenId> token_id(std::string_view piece) const override;
  std::optional<TokenId> bos_id() const override { return bos_; }
  std::optional<TokenId> eos_id() const override { return eos_; }
  std::optional<TokenId> pad_id() const override { return pad_; }

  std::string_view bytes() const { return bytes_; }

 private:
  VocabularyImage() = default;

  std::shared_ptr<const void> owner_;
  std::string_view bytes_;  // the whole image
  std::span<const std::uint32_t> offsets_, order_;
  std::span<const std::uint8_t> flags_;
  std::string_view texts_;
  std::optional<TokenId> bos_, eos_, pad_;
};

}  // namespace troupe
