#include "text/tokenizer/vocabulary.h"

#include <algorithm>

#include "base/utf8.h"

namespace troupe {

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

VocabularyTokenizer::VocabularyTokenizer(Vocabulary vocabulary)
    : bytes_(std::move(vocabulary.bytes)),
      added_(std::move(vocabulary.added)),
      bos_(vocabulary.bos),
      eos_(vocabulary.eos),
      pad_(vocabulary.pad),
      special_(bytes_.size(), false),
      reserved_(bytes_.size(), false) {
  ids_.reserve(bytes_.size());
  for (const AddedToken& token : added_.tokens()) {
    const auto id = static_cast<std::size_t>(token.id);
    special_[id] = special_[id] || token.special;
    reserved_[id] = reserved_[id] || token.special || token.guarded;
    if (token.special) {
      special_tokens_.push_back({token.id, token.text});
      ids_.try_emplace(bytes_[id], token.id);
    }
  }
  std::sort(special_tokens_.begin(), special_tokens_.end(),
            [](const SpecialToken& a, const SpecialToken& b) { return a.id < b.id; });
  for (std::size_t id = 0; id < bytes_.size(); ++id) {
    if (!bytes_[id].empty()) ids_.try_emplace(bytes_[id], static_cast<TokenId>(id));
  }
}

std::string_view VocabularyTokenizer::token_bytes(TokenId id) const {
  return in(id) ? std::string_view(bytes_[static_cast<std::size_t>(id)]) : std::string_view();
}

bool VocabularyTokenizer::is_special(TokenId id) const {
  return in(id) && special_[static_cast<std::size_t>(id)];
}

std::optional<TokenId> VocabularyTokenizer::token_id(std::string_view piece) const {
  const auto found = ids_.find(piece);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
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
