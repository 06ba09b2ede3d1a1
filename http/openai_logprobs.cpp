#include "http/openai_logprobs.h"

#include "base/utf8.h"
#include "http/json_text.h"

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

}  // namespace

void append_chat_logprobs(std::string& out, std::span<const TokenLogprob> tokens) {
  out.append(R"({"content":)");
  append_list(out, tokens, [&](const TokenLogprob& token) {
    out.push_back('{');
    append_score(out, token.token, token.known);
    out.append(R"(,"top_logprobs":)");
    append_list(out, std::span<const TokenScore>(token.top), [&](const TokenScore& score) {
      out.push_back('{');
      append_score(out, score, true);
      out.push_back('}');
    });
    out.push_back('}');
  });
  out.append(R"(,"refusal":null})");
}

void append_completion_logprobs(std::string& out, std::span<const TokenLogprob> tokens,
                                std::int64_t text_offset) {
  out.append(R"({"tokens":)");
  append_list(out, tokens, [&](const TokenLogprob& token) { append_legacy_token(out, token.token.bytes); });
  out.append(R"(,"token_logprobs":)");
  append_list(out, tokens, [&](const TokenLogprob& token) {
    if (token.known) {
      append_logprob(out, token.token.logprob);
    } else {
      out.append("null");
    }
  });
  out.append(R"(,"top_logprobs":)");
  append_list(out, tokens, [&](const TokenLogprob& token) {
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
  });
  out.append(R"(,"text_offset":)");
  append_list(out, tokens, [&](const TokenLogprob& token) {
    append_integer(out, text_offset);
    // A character cut between tokens is counted once: only its first byte counts.
    text_offset += static_cast<std::int64_t>(utf8::length(token.token.bytes));
  });
  out.push_back('}');
}

void append_prompt_logprobs(std::string& out, std::span<const TokenLogprob> tokens) {
  append_list(out, tokens, [&](const TokenLogprob& token) {
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
  });
}

}  // namespace troupe::http
