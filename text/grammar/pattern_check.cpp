#include "text/grammar/pattern_check.h"

#include <fsm.h>
#include <grammar_functor.h>

#include <algorithm>
#include <string>
#include <unordered_set>

#include "text/grammar/notices.h"
#include "text/grammar/schema_walk.h"

namespace troupe::grammar {
namespace {

Status refuse(const std::string& place, const std::string& why) {
  return invalid("cannot be enforced: " + why, place, "invalid_regex");
}

Status check_pattern(const std::string& pattern, const std::string& place) {
  const bool printable =
      std::all_of(pattern.begin(), pattern.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
  if (!printable) return refuse(place, "it has a control character");
  auto built = xgrammar::GrammarFSMBuilder::Regex(pattern, /*json_string=*/true);
  if (built.IsErr()) return refuse(place, std::move(built).UnwrapErr().what());
  const auto automaton = std::move(built).Unwrap();
  std::unordered_set<int> reachable;
  automaton.GetReachableStates(&reachable);
  const bool matches_something =
      std::any_of(reachable.begin(), reachable.end(), [&](int state) { return automaton.IsEndState(state); });
  if (!matches_something)
    return refuse(place, "no string without quotes, backslashes and control characters matches");
  return {};
}

/// Its objects are sorted: one that keeps the order of its members would compare each with all before it
/// while it is read.
using Sorted = nlohmann::json;

Status check(const Sorted& node, const std::string& place) {
  if (node.is_array()) {
    std::size_t index = 0;
    for (const Sorted& item : node) {
      if (Status status = check(item, place + "." + std::to_string(index++)); !status.ok()) return status;
    }
  }
  if (!node.is_object()) return {};
  for (const auto& [key, value] : node.get_ref<const Sorted::object_t&>()) {
    if (key == "enum" && value.is_array()) continue;
    const std::string here = place + "." + shown(key);
    if (key == "pattern" && value.is_string()) {
      if (Status status = check_pattern(value.get_ref<const std::string&>(), here); !status.ok())
        return status;
    }
    if (key == "patternProperties" && value.is_object()) {
      for (const auto& [pattern, schema] : value.get_ref<const Sorted::object_t&>()) {
        if (Status status = check_pattern(pattern, here + "." + shown(pattern)); !status.ok()) return status;
      }
    }
    if (Status status = check(value, here); !status.ok()) return status;
  }
  return {};
}

/// The schemas within a structural tag; other formats have patterns of their own, which are not within
/// strings.
Status check_tag(const Sorted& node, const std::string& place) {
  if (node.is_array()) {
    std::size_t index = 0;
    for (const Sorted& item : node) {
      if (Status status = check_tag(item, place + "." + std::to_string(index++)); !status.ok()) return status;
    }
  }
  if (!node.is_object()) return {};
  for (const auto& [key, value] : node.get_ref<const Sorted::object_t&>()) {
    const std::string here = place + "." + shown(key);
    Status status = key == "json_schema" ? check(value, here) : check_tag(value, here);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status check_patterns(const Source& source) {
  if (source.kind != Source::Kind::json_schema && source.kind != Source::Kind::structural_tag) return {};
  const Sorted value = Sorted::parse(source.text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return failure(Code::internal, "the source of a form is no JSON");
  return source.kind == Source::Kind::json_schema ? check(value, {}) : check_tag(value, {});
}

}  // namespace troupe::grammar
