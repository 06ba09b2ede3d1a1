#pragma once
// The work of a TOKENIZER, without the actor: text to token ids, and back.
#include <memory>

#include "actors/messages.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

/// Immutable after construction; any number of threads may use one.
class Encoder {
 public:
  /// `chat_template` may be null: chat requests are then refused with a sentence that says so.
  Encoder(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const ChatTemplate> chat_template)
      : tokenizer_(std::move(tokenizer)), template_(std::move(chat_template)) {}

  /// Never throws: every failure is Encoded::status and concerns this request alone.
  Encoded encode(Encode job) const;

  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }

 private:
  Result<std::vector<TokenId>> chat(http::Conversation& conversation) const;
  Status check_ids(const std::vector<std::vector<TokenId>>& prompts) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;
};

}  // namespace troupe
