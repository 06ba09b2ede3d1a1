#pragma once
// Text to token ids and back to bytes, for the two formats that checkpoints carry.
//
// A tokenizer is immutable after load and may be used by any number of threads at once. It never adds a
// token that is not in the text (no automatic begin or end of sequence: the chat template writes them).
// Text that is not valid UTF-8 is encoded as if each invalid sequence were U+FFFD (the rule of Python's
// errors="replace"), so that encoding never fails.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "text/text_span.h"

namespace troupe {

/// What encode() does with text that spells a special token.
enum class SpecialTokens {
  parse,  ///< it becomes that token: raw prompts and template text
  plain,  ///< it is ordinary text: everything a chat message says
};

/// A token that text can spell verbatim.
struct SpecialToken {
  TokenId id = 0;
  std::string text;
};

class VocabularyImage;

/// What each token prints: all that those need who follow tokens and encode no text.
class TokenTexts {
 public:
  virtual ~TokenTexts() = default;

  /// One more than the largest id that has a text. The model's vocabulary may be larger (padding rows).
  virtual int vocab_size() const = 0;

  /// The token's bytes in the output (perhaps a part of a character); special and added tokens verbatim,
  /// nothing for an id without a piece. Valid as long as this object.
  virtual std::string_view token_bytes(TokenId id) const = 0;

  /// True if skip_special_tokens leaves the token out. False for ids that do not exist.
  virtual bool is_special(TokenId id) const = 0;

  /// The id of a token spelled exactly like `piece` as token_bytes() gives it; specials first.
  virtual std::optional<TokenId> token_id(std::string_view piece) const = 0;

  /// From tokenizer_config.json and special_tokens_map.json, else from the SentencePiece model; nullopt when
  /// the checkpoint names none. Generation ends by generation_config.json, not by this alone.
  virtual std::optional<TokenId> bos_id() const = 0;
  virtual std::optional<TokenId> eos_id() const = 0;
  virtual std::optional<TokenId> pad_id() const = 0;
};

class Tokenizer : public TokenTexts {
 public:
  /// Loads `path` when it is not empty (a tokenizer.model or tokenizer.json, or a directory with one),
  /// otherwise model_dir's tokenizer.model, otherwise its tokenizer.json. Special tokens and their roles are
  /// completed from added_tokens.json, special_tokens_map.json and tokenizer_config.json of the tokenizer's
  /// directory. A file that is missing, damaged or needs a component that is not offered is an error that
  /// names it. Of texts that are the same as those of `shared` (null: there is none) no copy is kept.
  static Result<std::shared_ptr<const Tokenizer>> load(
      const std::string& model_dir, const std::string& path = {},
      std::shared_ptr<const VocabularyImage> shared = nullptr);

  std::vector<TokenId> encode(std::string_view text, SpecialTokens special) const;

  /// Encodes the spans as one text: an ordinary word may cross from one span to the next, a special token may
  /// not. No byte of an untrusted span ever becomes part of a special token. Added tokens that are not
  /// special match in both kinds, as they do in the reference tokenizers.
  virtual std::vector<TokenId> encode(std::span<const TextSpan> spans) const = 0;

  virtual const std::vector<SpecialToken>& special_tokens() const = 0;  ///< in the order of their ids
};

}  // namespace troupe
