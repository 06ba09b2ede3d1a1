#include "http/api/openai_logprobs.h"

#include <utility>

#include "base/utf8.h"
#include "http/api/json_text.h"

namespace troupe::http {
namespace {

void append_bytes(std::string& out, std::string_view bytes) {
  out.push_back('[');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_integer(out, static_cast<unsigned char>(bytes[i]));
  }
  out.push_back(']');
}

void append_score(std::string& out, const TokenScore& score, bool known) {
  out.append(R"("token":)");
  append_json_string(out, score.bytes);
  out.append(R"(,"logprob":)");
  if (known) {
    append_logprob(out, score.logprob);
  } else {
    out.append("null");
  }
  out.append(R"(,"bytes":)");
  append_bytes(out, score.bytes);
}

void append_legacy_token(std::string& out, std::string_view bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  if (utf8::is_valid(bytes)) {
    append_json_string(out, bytes);
    return;
  }
  out.append("\"bytes:");
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out.append("\\\\x").push_back(kHex[byte >> 4]);
    out.push_back(kHex[byte & 15]);
  }
  out.push_back('"');
}

// [a,b,c], each element written by `each`.
template <class T, class Each>
void append_list(std::string& out, std::span<const T> items, Each each) {
  out.push_back('[');
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.push_back(',');
    each(items[i]);
  }
  out.push_back(']');
}

void append_chat_score(std::string& out, const TokenLogprob& token) {
  out.push_back('{');
  append_score(out, token.token, token.known);
  out.append(R"(,"top_logprobs":)");
  append_list(out, std::span<const TokenScore>(token.top), [&](const TokenScore& score) {
    out.push_back('{');
    append_score(out, score, true);
    out.push_back('}');
  });
  out.push_back('}');
}

void append_top_scores(std::string& out, const TokenLogprob& token) {
  if (!token.known) {
    out.append("null");
    return;
  }
  out.push_back('{');
  for (std::size_t i = 0; i < token.top.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_legacy_token(out, token.top[i].bytes);
    out.push_back(':');
    append_logprob(out, token.top[i].logprob);
  }
  out.push_back('}');
}

void append_prompt_score(std::string& out, const TokenLogprob& token) {
  if (!token.known) {
    out.append("null");
    return;
  }
  const auto entry = [&](const TokenScore& score, std::size_t rank) {
    out.push_back('"');
    append_integer(out, score.id);
    out.append(R"(":{"logprob":)");
    append_logprob(out, score.logprob);
    out.append(R"(,"rank":)");
    if (rank > 0) {
      append_integer(out, static_cast<std::int64_t>(rank));
    } else {
      out.append("null");
    }
    out.append(R"(,"decoded_token":)");
    append_json_string(out, score.bytes);
    out.push_back('}');
  };
  out.push_back('{');
  bool listed = false;
  for (std::size_t i = 0; i < token.top.size(); ++i) {
    if (i > 0) out.push_back(',');
    entry(token.top[i], i + 1);
    listed |= token.top[i].id == token.token.id;
  }
  if (!listed) {
    if (!token.top.empty()) out.push_back(',');
    entry(token.token, 0);
  }
  out.push_back('}');
}

}  // namespace

std::int64_t text_chars(const TokenLogprob& score) {
  return score.in_text ? static_cast<std::int64_t>(utf8::length(score.token.bytes)) : 0;
}

void append_scores(std::string& out, ScoreList list, std::span<const TokenLogprob> scores, bool first,
                   std::int64_t& offset) {
  for (const TokenLogprob& score : scores) {
    if (!std::exchange(first, false)) out.push_back(',');
    switch (list) {
      case ScoreList::chat: append_chat_score(out, score); break;
      case ScoreList::tokens: append_legacy_token(out, score.token.bytes); break;
      case ScoreList::token_logprobs:
        if (score.known) {
          append_logprob(out, score.token.logprob);
        } else {
          out.append("null");
        }
        break;
      case ScoreList::top_logprobs: append_top_scores(out, score); break;
      case ScoreList::text_offset:
        append_integer(out, offset);
        offset += text_chars(score);
        break;
      case ScoreList::prompt: append_prompt_score(out, score); break;
    }
  }
}

void append_chat_logprobs(std::string& out, std::span<const TokenLogprob> tokens) {
  std::int64_t offset = 0;
  out.append(R"({"content":[)");
  append_scores(out, ScoreList::chat, tokens, true, offset);
  out.append(R"(],"refusal":null})");
}

void append_completion_logprobs(std::string& out, std::span<const TokenLogprob> tokens,
                                std::int64_t text_offset) {
  static constexpr std::pair<const char*, ScoreList> kLists[] = {
      {R"({"tokens":[)", ScoreList::tokens},
      {R"(],"token_logprobs":[)", ScoreList::token_logprobs},
      {R"(],"top_logprobs":[)", ScoreList::top_logprobs},
      {R"(],"text_offset":[)", ScoreList::text_offset}};
  for (const auto& [name, list] : kLists) {
    out.append(name);
    append_scores(out, list, tokens, true, text_offset);
  }
  out.append("]}");
}

void append_prompt_logprobs(std::string& out, std::span<const TokenLogprob> tokens) {
  std::int64_t offset = 0;
  out.push_back('[');
  append_scores(out, ScoreList::prompt, tokens, true, offset);
  out.push_back(']');
}

}  // namespace troupe::http
