#include "text/grammar/vocabulary.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace troupe::grammar {
namespace {

/// Bytes that occur in no UTF-8 text.
bool is_foreign(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5;
}

void put(std::string& out, std::uint32_t number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

bool take(std::string_view& in, std::uint32_t& number) {
  if (in.size() < sizeof number) return false;
  std::memcpy(&number, in.data(), sizeof number);
  in.remove_prefix(sizeof number);
  return true;
}

}  // namespace

Vocabulary vocabulary_of(const TokenTexts& texts, int size, const std::vector<TokenId>& stop_ids) {
  Vocabulary out;
  out.stop_ids = stop_ids;
  out.tokens.resize(static_cast<std::size_t>(std::max(size, 0)));
  const int known = std::min(size, texts.vocab_size());
  for (TokenId id = 0; id < known; ++id) {
    const std::string_view bytes = texts.token_bytes(id);
    std::string& token = out.tokens[static_cast<std::size_t>(id)];
    if (texts.is_special(id)) {
      token = kByIdOnly;
      token += bytes;
    } else if (std::none_of(bytes.begin(), bytes.end(), is_foreign)) {
      token = bytes;
    }
  }
  return out;
}

std::string to_bytes(const Vocabulary& vocabulary) {
  std::string out;
  put(out, static_cast<std::uint32_t>(vocabulary.tokens.size()));
  for (const std::string& token : vocabulary.tokens) {
    put(out, static_cast<std::uint32_t>(token.size()));
    out += token;
  }
  put(out, static_cast<std::uint32_t>(vocabulary.stop_ids.size()));
  for (const TokenId id : vocabulary.stop_ids) put(out, static_cast<std::uint32_t>(id));
  return out;
}

Result<Vocabulary> vocabulary_from_bytes(std::string_view bytes) {
  const Status damaged = invalid("the vocabulary is damaged");
  Vocabulary out;
  std::uint32_t tokens = 0, stops = 0;
  if (!take(bytes, tokens) || tokens > bytes.size() / sizeof tokens) return damaged;
  out.tokens.resize(tokens);
  for (std::string& token : out.tokens) {
    std::uint32_t size = 0;
    if (!take(bytes, size) || size > bytes.size()) return damaged;
    token = bytes.substr(0, size);
    bytes.remove_prefix(size);
  }
  if (!take(bytes, stops) || stops != bytes.size() / sizeof stops) return damaged;
  for (std::uint32_t i = 0; i < stops; ++i) {
    std::uint32_t id = 0;
    if (!take(bytes, id)) return damaged;
    out.stop_ids.push_back(static_cast<TokenId>(id));
  }
  return out;
}

}  // namespace troupe::grammar
