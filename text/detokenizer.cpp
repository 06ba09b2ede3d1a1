#include "text/detokenizer.h"

#include <utility>

#include "base/utf8.h"

namespace troupe {

std::string Detokenizer::append(TokenId id) {
  if (skip_special_tokens_ && texts_->is_special(id)) return {};
  const std::string bytes = std::exchange(pending_, {}).append(texts_->token_bytes(id));
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const utf8::Step step = utf8::decode(bytes, at);
    if (step.kind == utf8::SequenceKind::incomplete) {
      pending_ = bytes.substr(at);
      break;
    }
    out += step.kind == utf8::SequenceKind::character ? std::string_view(bytes).substr(at, step.bytes)
                                                      : utf8::kReplacement;
    at += step.bytes;
  }
  return out;
}

std::string Detokenizer::flush() {
  return std::exchange(pending_, {}).empty() ? std::string() : std::string(utf8::kReplacement);
}

}  // namespace troupe
