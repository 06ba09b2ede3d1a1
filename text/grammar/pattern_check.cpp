#include "text/grammar/pattern_check.h"

#include <fsm.h>
#include <grammar_functor.h>

#include <algorithm>
#include <string>
#include <unordered_set>

#include "text/grammar/notices.h"
#include "text/grammar/schema.h"

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

Status check(const Json& node, const std::string& place) {
  std::size_t index = 0;
  for (const Json& item : json::items(node)) {
    if (Status status = check(item, place + "." + std::to_string(index++)); !status.ok()) return status;
  }
  for (const auto& [key, value] : json::members(node)) {
    if (key == "enum" && value.is_array()) continue;
    const std::string here = place + "." + key;
    if (const std::string* pattern = json::text(value); pattern != nullptr && key == "pattern") {
      if (Status status = check_pattern(*pattern, here); !status.ok()) return status;
    }
    if (key == "patternProperties") {
      for (const auto& [pattern, schema] : json::members(value)) {
        if (Status status = check_pattern(pattern, here + "." + pattern); !status.ok()) return status;
      }
    }
    if (Status status = check(value, here); !status.ok()) return status;
  }
  return {};
}

/// The schemas within a structural tag; other formats have patterns of their own, which are not within
/// strings.
Status check_tag(const Json& node, const std::string& place) {
  std::size_t index = 0;
  for (const Json& item : json::items(node)) {
    if (Status status = check_tag(item, place + "." + std::to_string(index++)); !status.ok()) return status;
  }
  for (const auto& [key, value] : json::members(node)) {
    const std::string here = place + "." + key;
    Status status = key == "json_schema" ? check(value, here) : check_tag(value, here);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status check_patterns(const Source& source) {
  if (source.kind != Source::Kind::json_schema && source.kind != Source::Kind::structural_tag) return {};
  const auto value = json::parse(source.text);
  if (!value) return failure(Code::internal, "the source of a form is no JSON");
  return source.kind == Source::Kind::json_schema ? check(*value, {}) : check_tag(*value, {});
}

}  // namespace troupe::grammar
