#include "http/api/schema_patterns.h"

#include <algorithm>

namespace troupe::http {
namespace {

constexpr const char* kSchemas[] = {"additionalItems",
                                    "additionalProperties",
                                    "contains",
                                    "contentSchema",
                                    "else",
                                    "if",
                                    "items",
                                    "not",
                                    "propertyNames",
                                    "then",
                                    "unevaluatedItems",
                                    "unevaluatedProperties"};
constexpr const char* kLists[] = {"allOf", "anyOf", "items", "oneOf", "prefixItems"};
constexpr const char* kMaps[] = {"$defs", "definitions", "dependentSchemas", "patternProperties",
                                 "properties"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Reads a regular expression once from left to right. Dialects differ in what they add, such as named groups
/// and possessive quantifiers; what is found here is wrong in all of them.
class RegexScan {
 public:
  explicit RegexScan(std::string_view text) : text_(text) {}

  std::string fault() {
    while (at_ < text_.size()) {
      if (std::string why = step(); !why.empty()) return why;
    }
    return groups_ > 0 ? "a group is not closed" : "";
  }

 private:
  /// What stands before: a quantifier repeats an item, and two of them may follow it, the second as in "a+?".
  enum class Before { nothing, item, quantifier, done };

  std::string step() {
    switch (const char c = text_[at_++]) {
      case '\\':
        if (at_ == text_.size()) return "it ends with a backslash";
        ++at_;
        before_ = Before::item;
        return {};
      case '[': return skip_class();
      case '(':
        ++groups_;
        if (at_ < text_.size() && text_[at_] == '?') ++at_;  // "(?:", "(?=" and others
        before_ = Before::nothing;
        return {};
      case ')':
        if (groups_-- == 0) return "it closes a group that is not open";
        before_ = Before::item;
        return {};
      case '|': before_ = Before::nothing; return {};
      case '*':
      case '+':
      case '?': return quantify(c);
      case '{': return skip_count();
      default: before_ = Before::item; return {};
    }
  }

  std::string quantify(char c) {
    if (before_ == Before::nothing || before_ == Before::done ||
        (before_ == Before::quantifier && c == '*')) {
      return std::string(1, c) + " has nothing to repeat";
    }
    before_ = before_ == Before::item ? Before::quantifier : Before::done;
    return {};
  }

  /// "{2}", "{2,}", "{2,3}" or "{,3}"; any other brace is a letter.
  std::string skip_count() {
    std::size_t end = at_;
    while (end < text_.size() && (is_digit(text_[end]) || text_[end] == ',')) ++end;
    const bool closed = end < text_.size() && text_[end] == '}';
    const std::string_view inside = closed ? text_.substr(at_, end - at_) : std::string_view();
    const std::size_t comma = std::min(inside.find(','), inside.size());
    const std::string_view low = inside.substr(0, comma),
                           high = inside.substr(std::min(comma + 1, inside.size()));
    const auto digits = [](std::string_view part) { return std::all_of(part.begin(), part.end(), is_digit); };
    if ((low.empty() && high.empty()) || !digits(low) || !digits(high)) {
      before_ = Before::item;
      return {};
    }
    at_ = end + 1;
    if (before_ != Before::item) return "{" + std::string(inside.substr(0, 16)) + "} has nothing to repeat";
    before_ = Before::quantifier;
    if (high.empty() || !less(high, low)) return {};
    return "{" + std::string(inside.substr(0, 32)) + "} has its bounds in the wrong order";
  }

  /// Compares numbers of any length.
  static bool less(std::string_view a, std::string_view b) {
    a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
    b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }

  std::string skip_class() {
    if (at_ < text_.size() && text_[at_] == '^') ++at_;
    for (; at_ < text_.size() && text_[at_] != ']'; ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (is_letter(at_) && at_ + 2 < text_.size() && text_[at_ + 1] == '-' && is_letter(at_ + 2)) {
        if (text_[at_] > text_[at_ + 2]) {
          return "the range " + std::string(text_.substr(at_, 3)) + " has its ends in the wrong order";
        }
        at_ += 2;
      }
    }
    if (at_ >= text_.size()) return "a class is not closed";
    ++at_;
    before_ = Before::item;
    return {};
  }

  bool is_letter(std::size_t at) const {
    const char c = text_[at];
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  std::size_t groups_ = 0;  ///< that are open
  Before before_ = Before::nothing;
};

std::optional<SchemaFault> no_regex(const std::string& path, const std::string& text) {
  const std::string why = regex_fault(text);
  if (why.empty()) return {};
  return SchemaFault{path, "is no regular expression: " + why + ", got " + excerpt(Json(text))};
}

std::optional<SchemaFault> look(const Json& schema, const std::string& path) {
  if (!schema.is_object()) return {};
  const auto member = [&](const char* name) { return json::member(schema, name); };
  if (const Json* pattern = member("pattern")) {
    const std::string* text = json::text(pattern);
    if (text == nullptr) return SchemaFault{path + ".pattern", "must be a string, got " + excerpt(*pattern)};
    if (auto fault = no_regex(path + ".pattern", *text)) return fault;
  }
  for (const char* name : kSchemas) {
    if (const Json* below = member(name)) {
      if (auto fault = look(*below, path + "." + name)) return fault;
    }
  }
  for (const char* name : kLists) {
    const Json* list = member(name);
    if (list == nullptr) continue;
    std::size_t i = 0;
    for (const Json& item : json::items(*list)) {
      if (auto fault = look(item, path + "." + name + "." + std::to_string(i++))) return fault;
    }
  }
  for (const char* name : kMaps) {
    const Json* map = member(name);
    if (map == nullptr) continue;
    for (const auto& [key, value] : json::members(*map)) {
      if (name == std::string_view("patternProperties")) {
        if (auto fault = no_regex(path + "." + name, key)) return fault;
      }
      if (auto fault = look(value, path + "." + name + "." + cut(key))) return fault;
    }
  }
  return {};
}

}  // namespace

std::string regex_fault(std::string_view text) { return RegexScan(text).fault(); }

std::optional<SchemaFault> bad_pattern(const Json& schema) { return look(schema, {}); }

}  // namespace troupe::http
