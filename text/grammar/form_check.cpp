#include "text/grammar/form_check.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "text/grammar/schema_walk.h"

namespace troupe::grammar {
namespace {

Status wrong(const std::string& place, const std::string& why) {
  return invalid(place + " " + why, place, "invalid_value");
}

/// Size and nesting of a regex or a grammar. Brackets within character classes and literals count too: nobody
/// nests 500.
Status check_text(const Json& value, const std::string& place, const FormLimits& limits) {
  const std::string* given = json::text(value);
  if (given == nullptr || given->empty()) return wrong(place, "must be a string that is not empty");
  const std::string& text = *given;
  if (text.size() > limits.text_bytes) {
    return invalid(place + " has " + std::to_string(text.size()) + " bytes; at most " +
                       std::to_string(limits.text_bytes) + " are allowed",
                   place, "grammar_too_large");
  }
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '(') {
      if (++depth > limits.nesting) {
        return invalid(place + " nests deeper than " + std::to_string(limits.nesting) + " parentheses", place,
                       "grammar_too_deep");
      }
    } else if (text[i] == ')') {
      depth = std::max(0, depth - 1);
    }
  }
  return {};
}

/// Where in `line` the separator of a rule stands, behind its name; npos if the line begins no rule. Lark
/// allows
/// `?` or `!` before the name and a priority such as `.2` behind it.
std::size_t rule_separator(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  constexpr std::string_view kName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  const std::size_t begin = line.find_first_not_of(" \t\r?!");
  if (begin == std::string_view::npos) return begin;
  const std::size_t end = line.find_first_not_of(kName, begin);
  return end == begin || end == std::string_view::npos ? std::string_view::npos
                                                       : line.find_first_not_of(kBlank, end);
}

/// True for a grammar as Lark writes them: rules `name: body` or directives such as %import, and no `name
/// ::=`.
bool is_lark(std::string_view text) {
  bool found = false;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (line.starts_with('%')) found = true;
    const std::size_t at = rule_separator(line);
    if (at == std::string_view::npos) continue;
    if (line.substr(at).starts_with("::=")) return false;
    if (line[at] == ':') found = true;
  }
  return found;
}

/// As check_text(), and that the grammar is not in Lark's dialect, whose faults the compiler would name one
/// by one.
Status check_grammar(const Json& value, const std::string& place, const FormLimits& limits) {
  if (Status status = check_text(value, place, limits); !status.ok()) return status;
  if (!is_lark(*json::text(value))) return {};
  return invalid(
      place +
          " is a grammar in Lark's dialect, which is not read here; expected is the EBNF of xgrammar "
          "and llama.cpp (GBNF): rules `name ::= body`, one of them named root",
      place, "invalid_grammar");
}

/// A dot matches all but a line feed, as in every other engine; xgrammar's matches that too.
std::string with_plain_dots(const std::string& regex) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size()) {
      out += c;
      out += regex[++i];
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    if (c == '.' && !in_class) {
      out += "[^\\n]";
    } else {
      out += c;
    }
  }
  return out;
}

/// The text as a literal of the grammar's language.
std::string literal(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

Result<std::string> choice_grammar(const Json& value, const std::string& place, const FormLimits& limits) {
  if (!value.is_array() || value.empty() || value.size() > limits.choices) {
    return wrong(place, "must be a list of 1 to " + std::to_string(limits.choices) + " strings");
  }
  std::set<std::string> seen;
  std::size_t bytes = 0;
  std::string out = "root ::= ";
  std::size_t i = 0;
  for (const Json& choice : json::items(value)) {
    const std::string* given = json::text(choice);
    if (given == nullptr || given->empty()) {
      return wrong(place + "." + std::to_string(i), "must be a string that is not empty");
    }
    const std::string& text = *given;
    bytes += text.size();
    if (bytes > limits.schema.name_chars) {
      return invalid(place + " holds more than " + std::to_string(limits.schema.name_chars) + " bytes", place,
                     "grammar_too_large");
    }
    ++i;
    if (!seen.insert(text).second) continue;
    if (i > 1) out += " | ";
    out += literal(text);
  }
  return out;
}

/// The formats of a structural tag, rewritten in place: schemas to what is enforced, token names to ids.
class TagWalk {
 public:
  TagWalk(const TokenTexts& texts, bool any_whitespace, const FormLimits& limits)
      : texts_(texts), any_whitespace_(any_whitespace), limits_(limits) {}

  Status visit(Json& node, const std::string& place) {
    std::size_t index = 0;
    for (Json& item : json::items(node)) {
      if (Status status = visit(item, place + "." + std::to_string(index++)); !status.ok()) return status;
    }
    json::Members* members = json::object(node);
    if (members == nullptr) return {};
    const std::string* named = json::text(json::member(&node, "type"));
    const std::string type = named != nullptr ? *named : "";
    for (auto& [key, value] : *members) {
      const std::string here = place + "." + shown(key);
      Status status;
      if (key == "json_schema") {
        if (type != "json_schema") return wrong(here, "belongs into a format with the type json_schema");
        status = enforceable(value, here, limits_.schema);
      } else if (key == "style") {
        if (value != "json") return wrong(here, "must be \"json\": other styles are not checked");
      } else if (key == "pattern" || key == "grammar") {
        status = key == "grammar" ? check_grammar(value, here, limits_) : check_text(value, here, limits_);
        if (std::string* text = json::text(value); status.ok() && text != nullptr && type == "regex") {
          *text = with_plain_dots(*text);
        }
      } else if (key == "token") {
        status = name_token(value, here);
      } else if (key == "exclude_tokens" || key == "trigger_tokens") {
        std::size_t i = 0;
        for (Json& token : json::items(value)) {
          if (status.ok()) status = name_token(token, here + "." + std::to_string(i++));
        }
      } else if (key == "rules" && type == "token_dispatch") {
        std::size_t i = 0;
        for (Json& pair : json::items(value)) {
          const std::string rule = here + "." + std::to_string(i++);
          const auto parts = json::items(pair);
          if (parts.size() != 2) return wrong(rule, "must be a token and a format");
          if (status.ok()) status = name_token(parts[0], rule + ".0");
          if (status.ok()) status = visit(parts[1], rule + ".1");
        }
      } else {
        status = visit(value, here);
      }
      if (!status.ok()) return status;
    }
    if (type == "json_schema" && !json::has(node, "max_whitespace_cnt")) {
      json::put(node, "max_whitespace_cnt", any_whitespace_ ? kMaxWhitespace : 1);
    }
    return {};
  }

 private:
  static constexpr int kMaxWhitespace = 24;

  Status name_token(Json& token, const std::string& here) const {
    if (const std::string* text = json::text(token)) {
      const auto id = texts_.token_id(*text);
      if (!id) {
        return wrong(here,
                     "is \"" + utf8::to_valid(text->substr(0, 48)) + "\", which is no token of this model");
      }
      token = *id;
      return {};
    }
    const auto id = token.is_number_integer() ? json::integer(token) : std::nullopt;
    if (!id || *id < 0 || *id >= texts_.vocab_size()) {
      return wrong(here, "must be a token or its id, from 0 to " + std::to_string(texts_.vocab_size() - 1));
    }
    return {};
  }

  const TokenTexts& texts_;
  const bool any_whitespace_;
  const FormLimits& limits_;
};

/// {structures: [{begin, schema, end}], triggers} in the words of {format}. Paths of faults are those of the
/// former.
Result<Json> tagged_format(Json& value, const std::string& place, const FormLimits& limits) {
  Json tags = Json::array();
  Json* given = json::member(value, "structures");
  const std::span<Json> structures = given != nullptr ? json::items(*given) : std::span<Json>();
  if (structures.empty()) return wrong(place + ".structures", "must be a list that is not empty");
  std::size_t index = 0;
  for (Json& item : structures) {
    const std::string here = place + ".structures." + std::to_string(index++);
    const std::string* begin = json::text(json::member(&item, "begin"));
    const std::string* end = json::text(json::member(&item, "end"));
    if (begin == nullptr || end == nullptr) {
      return wrong(here, "must be an object with the strings begin and end");
    }
    Json* wanted = json::member(item, "schema");
    Json schema = wanted != nullptr ? std::move(*wanted) : Json::object();
    if (Status status = enforceable(schema, here + ".schema", limits.schema); !status.ok()) return status;
    tags.push_back({{"type", "tag"},
                    {"begin", *begin},
                    {"content", {{"type", "json_schema"}, {"json_schema", std::move(schema)}}},
                    {"end", *end}});
  }
  Json* triggers = json::member(value, "triggers");
  if (triggers == nullptr || json::items(*triggers).empty())
    return wrong(place + ".triggers", "must be a list that is not empty");
  return Json{{"type", "triggered_tags"}, {"triggers", std::move(*triggers)}, {"tags", std::move(tags)}};
}

Result<std::string> tag_text(Json value, const std::string& place, const TokenTexts& texts,
                             bool any_whitespace, const FormLimits& limits) {
  if (!value.is_object()) return wrong(place, "must be an object");
  if (!json::has(value, "format") && json::has(value, "structures")) {
    auto format = tagged_format(value, place, limits);
    if (!format.ok()) return format.status();
    value = Json{{"type", "structural_tag"}, {"format", *std::move(format)}};
  }
  Json* format = json::member(value, "format");
  if (format == nullptr || !format->is_object()) {
    return wrong(place, "must have a format, or structures and triggers");
  }
  TagWalk walk(texts, any_whitespace, limits);
  if (Status status = walk.visit(*format, place + ".format"); !status.ok()) return status;
  return json::to_text(Json{{"type", "structural_tag"}, {"format", std::move(*format)}});
}

}  // namespace

Result<Source> prepare(Form::Kind kind, Json value, const std::string& param, const TokenTexts& texts,
                       bool any_whitespace, const FormLimits& given) {
  FormLimits limits = given;
  limits.schema.open_name_chars =
      std::min(given.schema.open_name_chars, open_name_chars_for(texts.vocab_size()));
  Source source;
  source.any_whitespace = any_whitespace;
  switch (kind) {
    case Form::Kind::json_object:
      source.text = R"({"type":"object","additionalProperties":true})";
      return source;
    case Form::Kind::json_schema:
      if (Status status = enforceable(value, param, limits.schema); !status.ok()) return status;
      source.text = json::to_text(value);
      return source;
    case Form::Kind::regex:
      source.kind = Source::Kind::regex;
      if (Status status = check_text(value, param, limits); !status.ok()) return status;
      source.text = with_plain_dots(*json::text(value));
      return source;
    case Form::Kind::grammar:
      source.kind = Source::Kind::ebnf;
      if (Status status = check_grammar(value, param, limits); !status.ok()) return status;
      source.text = std::move(*json::text(value));
      return source;
    case Form::Kind::choice: {
      source.kind = Source::Kind::ebnf;
      auto text = choice_grammar(value, param, limits);
      if (!text.ok()) return text.status();
      source.text = *std::move(text);
      return source;
    }
    case Form::Kind::structural_tag: {
      source.kind = Source::Kind::structural_tag;
      auto text = tag_text(std::move(value), param, texts, any_whitespace, limits);
      if (!text.ok()) return text.status();
      source.text = *std::move(text);
      return source;
    }
  }
  return failure(Code::internal, "an unknown kind of form");
}

}  // namespace troupe::grammar
