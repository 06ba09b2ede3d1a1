#pragma once
// The work of a TOKENIZER, without the actor: text to token ids, and back.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/messages.h"
#include "base/log.h"
#include "text/template/chat_template.h"
#include "text/template/media_marks.h"
#include "text/template/plain_messages.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

/// How much one request may ask of a TOKENIZER.
struct EncoderBounds {
  std::int32_t max_model_len = 0;  ///< told with the answer to /tokenize
  /// Of a text to generate from: one that has more bytes has more tokens than the model takes, and is refused
  /// unread.
  std::size_t max_text_bytes = SIZE_MAX;
};

/// What stands for images and videos in the prompts of a model that sees.
struct MediaTokens {
  TokenId item = 0;   ///< each token of an image or a video
  TokenId video = 0;  ///< of videos elsewhere; may be the same
};

/// The bounds of a model.
EncoderBounds bounds_of(const Tokenizer& tokenizer, std::int32_t max_model_len);

/// Immutable after construction; any number of threads may use one.
class Encoder {
 public:
  /// `chat_template` may be null: chat requests are then refused with a sentence that says so. Without
  /// `media` the model does not see.
  Encoder(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
          EncoderBounds bounds = {}, std::optional<MediaTokens> media = {});

  /// Never throws: every failure is Encoded::status and concerns this request alone. `log` hears of
  /// exceptions.
  Encoded encode(Encode job, const Log& log = {}) const;

  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }

 private:
  Status encode_source(Encode& job, Encoded& out) const;
  Status check_bytes(std::size_t bytes, const Encode& job, const std::string& field) const;
  Status ban_words(const std::vector<std::string>& words, std::vector<wire::LogitBias>& bans) const;
  void add_texts(Encode& job, Encoded& out) const;
  std::vector<TokenId> predicted(std::string_view text) const;
  std::string tokenized(const Encode& job, const Encoded& out) const;
  Result<std::vector<TokenId>> chat(http::Conversation& conversation, const Encode& job,
                                    std::vector<MediaItem>& items) const;
  Result<std::vector<TokenId>> expanded(std::span<const TextSpan> spans, const Encode& job,
                                        std::vector<MediaItem>& items) const;
  Status locate_items(const Encode& job, Encoded& out) const;
  Status check_marks(std::span<const MediaMark> marks, const Encode& job) const;
  Status check_placeholders(const Encode& job, const Encoded& out) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;
  std::optional<MediaTokens> media_;
  MediaMarks marks_;
  PlainMessages plain_messages_;
  EncoderBounds bounds_;
};

}  // namespace troupe
