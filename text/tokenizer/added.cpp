#include "text/tokenizer/added.h"

#include "base/utf8.h"

namespace troupe {
namespace {

std::uint64_t edge(std::uint32_t node, char byte) {
  return std::uint64_t{node} << 8 | static_cast<unsigned char>(byte);
}

std::size_t character_before(std::string_view text, std::size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool is_space_at(std::string_view text, std::size_t at) {
  return utf8::is_space(utf8::decode(text, at).point);
}

// True for letters, digits and non-ASCII characters that are no space: the characters inside a word.
bool is_word_at(std::string_view text, std::size_t at) {
  const char32_t point = utf8::decode(text, at).point;
  if (point >= 0x80) return !utf8::is_space(point) && !(point >= 0x2000 && point <= 0x206F) && point < 0xFE00;
  return (point >= '0' && point <= '9') || ((point | 0x20) >= 'a' && (point | 0x20) <= 'z') || point == '_';
}

}  // namespace

bool is_markup(std::string_view text) {
  return text.size() > 2 &&
         ((text.front() == '<' && text.back() == '>') || (text.front() == '[' && text.back() == ']'));
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    std::uint32_t node = 0;
    starts_[static_cast<unsigned char>(tokens_[i].text.front())] = true;
    for (char byte : tokens_[i].text) {
      const auto [next, added] =
          edges_.try_emplace(edge(node, byte), static_cast<std::uint32_t>(terminal_.size()));
      if (added) terminal_.push_back(-1);
      node = next->second;
    }
    terminal_[node] = static_cast<int>(i);
  }
}

const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t at, const May& may) const {
  const AddedToken* best = nullptr;
  std::uint32_t node = 0;
  for (std::size_t end = at; end < text.size();) {
    const auto next = edges_.find(edge(node, text[end]));
    if (next == edges_.end()) break;
    node = next->second;
    ++end;
    if (terminal_[node] < 0) continue;
    const AddedToken& token = tokens_[static_cast<std::size_t>(terminal_[node])];
    if (may(token, at, end)) best = &token;
  }
  return best;
}

AddedPart AddedTokens::find(std::string_view text, std::size_t from) const {
  const auto any = [](const AddedToken&, std::size_t, std::size_t) { return true; };
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!starts_[static_cast<unsigned char>(text[at])]) continue;
    if (const AddedToken* token = longest_at(text, at, any)) return {at, at + token->text.size(), token};
  }
  return {text.size(), text.size(), nullptr};
}

std::vector<AddedPart> AddedTokens::split(std::string_view text, const May& may) const {
  std::vector<AddedPart> parts;
  std::size_t ordinary = 0;  // where the ordinary text before `at` begins
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token =
        starts_[static_cast<unsigned char>(text[at])] ? longest_at(text, at, may) : nullptr;
    if (!token) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + token->text.size();
    const bool inside_word = (begin > 0 && is_word_at(text, character_before(text, begin))) ||
                             (end < text.size() && is_word_at(text, end));
    if (token->single_word && inside_word) {
      at = end;
      continue;
    }
    while (token->lstrip && begin > ordinary && is_space_at(text, character_before(text, begin))) {
      begin = character_before(text, begin);
    }
    while (token->rstrip && end < text.size() && is_space_at(text, end)) {
      end += static_cast<std::size_t>(utf8::decode(text, end).bytes);
    }
    if (begin > ordinary) parts.push_back({ordinary, begin, nullptr});
    parts.push_back({begin, end, token});
    ordinary = at = end;
  }
  if (ordinary < text.size()) parts.push_back({ordinary, text.size(), nullptr});
  return parts;
}

}  // namespace troupe
