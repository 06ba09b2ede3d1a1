#include "text/tokenizer/vocabulary.h"

#include <algorithm>

#include "base/utf8.h"

namespace troupe {
namespace {

/// The texts as a loader has found them.
class LoadedTexts final : public TokenTexts {
 public:
  LoadedTexts(const Vocabulary& vocabulary, const std::vector<bool>& special)
      : vocabulary_(vocabulary), special_(special) {}

  int vocab_size() const override { return static_cast<int>(vocabulary_.bytes.size()); }
  std::string_view token_bytes(TokenId id) const override {
    return vocabulary_.bytes[static_cast<std::size_t>(id)];
  }
  bool is_special(TokenId id) const override { return special_[static_cast<std::size_t>(id)]; }
  std::optional<TokenId> token_id(std::string_view piece) const override {
    const auto found = std::find(vocabulary_.bytes.begin(), vocabulary_.bytes.end(), piece);
    if (found == vocabulary_.bytes.end()) return std::nullopt;
    return static_cast<TokenId>(found - vocabulary_.bytes.begin());
  }
  std::optional<TokenId> bos_id() const override { return vocabulary_.bos; }
  std::optional<TokenId> eos_id() const override { return vocabulary_.eos; }
  std::optional<TokenId> pad_id() const override { return vocabulary_.pad; }

 private:
  const Vocabulary& vocabulary_;
  const std::vector<bool>& special_;
};

}  // namespace

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  const TextSpan span{std::string(text), special == SpecialTokens::parse};
  return encode(std::span(&span, 1));
}

bool Vocabulary::set(TokenId id, std::string text) {
  if (id < 0 || id > kMaxTokenId) return false;
  if (static_cast<std::size_t>(id) >= bytes.size()) bytes.resize(static_cast<std::size_t>(id) + 1);
  bytes[static_cast<std::size_t>(id)] = std::move(text);
  return true;
}

VocabularyTokenizer::VocabularyTokenizer(Vocabulary vocabulary, std::shared_ptr<const VocabularyImage> shared)
    : added_(std::move(vocabulary.added)), reserved_(vocabulary.bytes.size(), false) {
  std::vector<bool> special(vocabulary.bytes.size(), false);
  for (const AddedToken& token : added_.tokens()) {
    const auto id = static_cast<std::size_t>(token.id);
    special[id] = special[id] || token.special;
    reserved_[id] = reserved_[id] || token.special || token.guarded;
    if (token.special) special_tokens_.push_back({token.id, token.text});
  }
  std::sort(special_tokens_.begin(), special_tokens_.end(),
            [](const SpecialToken& a, const SpecialToken& b) { return a.id < b.id; });
  const LoadedTexts loaded(vocabulary, special);
  if (shared != nullptr && shared->bytes() == VocabularyImage::bytes_of(loaded)) {
    texts_ = std::move(shared);
  } else {
    texts_ = VocabularyImage::copy_of(loaded);
  }
}

std::vector<TokenId> VocabularyTokenizer::encode(std::span<const TextSpan> spans) const {
  // One text, so that words may cross from span to span, and its trusted ranges.
  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>> trusted;
  for (const TextSpan& span : spans) {
    const std::size_t begin = text.size();
    text += utf8::is_valid(span.text) ? span.text : utf8::to_valid(span.text);
    if (!span.trusted || text.size() == begin) continue;
    if (!trusted.empty() && trusted.back().second == begin) {
      trusted.back().second = text.size();
    } else {
      trusted.emplace_back(begin, text.size());
    }
  }
  const auto may = [&](const AddedToken& token, std::size_t begin, std::size_t end) {
    if (!token.special && !token.guarded) return true;
    const auto after = std::upper_bound(trusted.begin(), trusted.end(), std::pair(begin, std::string::npos));
    return after != trusted.begin() && std::prev(after)->second >= end;
  };
  std::vector<TokenId> out;
  out.reserve(text.size() / 3 + 8);
  for (const AddedPart& part : added_.split(text, may)) {
    if (part.token) {
      out.push_back(part.token->id);
    } else {
      encode_ordinary(std::string_view(text).substr(part.begin, part.end - part.begin), part.begin == 0, out);
    }
  }
  return out;
}

}  // namespace troupe
