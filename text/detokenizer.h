#pragma once
// The text of a growing list of tokens, one token at a time.
#include <memory>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

/// One per generated sequence; cheap to make and to copy (a copy goes on from the same point). Not shared
/// between threads. Everything it returns is valid UTF-8 and starts and ends at characters: bytes of an
/// unfinished character wait for the next token, and each maximal invalid sequence becomes one U+FFFD, as in
/// Python's bytes.decode(errors="replace"). The concatenation of all results equals that decoding of
/// the concatenated token bytes. Nothing is stripped: a leading space belongs to the text.
class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const TokenTexts> texts, bool skip_special_tokens = true)
      : texts_(std::move(texts)), skip_special_tokens_(skip_special_tokens) {}

  /// The characters completed by this token; often empty. An unknown id contributes nothing.
  std::string append(TokenId id);

  /// At the end of the sequence: U+FFFD when a character is unfinished, else empty. The object may be reused.
  std::string flush();

  /// Bytes of the unfinished character, at most 3.
  std::string_view pending() const { return pending_; }

 private:
  std::shared_ptr<const TokenTexts> texts_;
  bool skip_special_tokens_;
  std::string pending_;
};

}  // namespace troupe
