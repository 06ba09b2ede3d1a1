#include "http/api/model_choice.h"

#include <algorithm>

#include "base/json.h"

namespace troupe::http {
namespace {

/// End of the string that begins at `at` with a quote: behind its last quote; npos: it does not end.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return text.npos;
}

std::size_t skip_blanks(std::string_view text, std::size_t at) {
  const std::size_t found = text.find_first_not_of(" \t\r\n", at);
  return found == text.npos ? text.size() : found;
}

}  // namespace

std::string model_of_body(std::string_view body) {
  std::string name;
  int depth = 0;
  for (std::size_t at = 0; at < body.size();) {
    const char c = body[at];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c != '"') {
      ++at;
      continue;
    }
    const std::size_t end = end_of_string(body, at);
    if (end == body.npos) break;
    const bool key = depth == 1 && body.substr(at, end - at) == R"("model")";
    at = end;
    if (!key) continue;
    const std::size_t colon = skip_blanks(body, at);
    if (colon == body.size() || body[colon] != ':') continue;
    at = skip_blanks(body, colon + 1);
    if (at == body.size() || body[at] != '"') continue;
    const std::size_t value_end = end_of_string(body, at);
    if (value_end == body.npos) break;
    if (const auto value = json::parse(body.substr(at, value_end - at))) {
      if (const std::string* text = json::text(*value)) name = *text;
    }
    at = value_end;
  }
  return name;
}

std::size_t choose_model(std::string_view name, const ModelFacts& first,
                         const std::vector<ModelFacts>& more) {
  const auto has = [&](const ModelFacts& model) {
    return std::find(model.names.begin(), model.names.end(), name) != model.names.end();
  };
  if (name.empty() || has(first)) return 0;
  const auto found = std::find_if(more.begin(), more.end(), has);
  return found == more.end() ? 0 : static_cast<std::size_t>(found - more.begin()) + 1;
}

}  // namespace troupe::http
