#pragma once
// A tokenizer for tests: every byte is a token, and there are two special tokens that end a text, and perhaps
// more.
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace troupe::testing {

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr TokenId kEos = 256;
  static constexpr TokenId kEnd = 257;

  /// `more` special tokens get the ids from 258 on.
  explicit ByteTokenizer(const std::vector<std::string>& more = {}) {
    for (int i = 0; i < 256; ++i) pieces_.push_back(std::string(1, static_cast<char>(i)));
    pieces_.push_back("</s>");
    pieces_.push_back("<|end|>");
    pieces_.insert(pieces_.end(), more.begin(), more.end());
    for (int id = 256; id < vocab_size(); ++id)
      specials_.push_back({id, pieces_[static_cast<std::size_t>(id)]});
  }

  using Tokenizer::encode;
  int vocab_size() const override { return static_cast<int>(pieces_.size()); }
  std::vector<TokenId> encode(std::span<const TextSpan> spans) const override {
    std::vector<TokenId> ids;
    for (const TextSpan& span : spans) {
      for (std::size_t i = 0; i < span.text.size();) {
        std::size_t step = 1;
        TokenId id = static_cast<unsigned char>(span.text[i]);
        if (span.trusted) {
          for (const SpecialToken& special : specials_) {
            if (span.text.compare(i, special.text.size(), special.text) != 0) continue;
            id = special.id;
            step = special.text.size();
          }
        }
        ids.push_back(id);
        i += step;
      }
    }
    return ids;
  }
  std::string_view token_bytes(TokenId id) const override {
    return id >= 0 && id < vocab_size() ? std::string_view(pieces_[static_cast<std::size_t>(id)])
                                        : std::string_view();
  }
  bool is_special(TokenId id) const override { return id >= 256 && id < vocab_size(); }
  std::optional<TokenId> token_id(std::string_view piece) const override {
    for (int i = vocab_size() - 1; i >= 0; --i) {
      if (pieces_[static_cast<std::size_t>(i)] == piece) return i;
    }
    return std::nullopt;
  }
  const std::vector<SpecialToken>& special_tokens() const override { return specials_; }
  std::optional<TokenId> bos_id() const override { return std::nullopt; }
  std::optional<TokenId> eos_id() const override { return kEos; }
  std::optional<TokenId> pad_id() const override { return std::nullopt; }

 private:
  std::vector<std::string> pieces_;
  std::vector<SpecialToken> specials_;
};

}  // namespace troupe::testing
