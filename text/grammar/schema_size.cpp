// How large the grammar of an object's properties gets, beyond their number. The bounds keep a schema that
// passes enforceable() within the time and the memory of the process that compiles it.
#include <algorithm>
#include <iterator>
#include <set>
#include <unordered_set>

#include "text/grammar/schema_walk.h"

namespace troupe::grammar {
namespace {

std::size_t common_prefix(std::string_view a, std::string_view b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<std::size_t>(end - a.begin());
}

/// Characters that a name adds to the tree of the names so far.
class NameTree {
 public:
  std::size_t add(std::string_view name) {
    const auto [place, is_new] = names_.insert(name);
    if (!is_new) return 0;
    std::size_t shared = 0;
    if (place != names_.begin()) shared = common_prefix(name, *std::prev(place));
    if (const auto next = std::next(place); next != names_.end())
      shared = std::max(shared, common_prefix(name, *next));
    return name.size() - shared;
  }

 private:
  std::set<std::string_view> names_;
};

std::optional<std::int64_t> count_of(const Json& node, std::string_view keyword) {
  const Json* value = json::member(node, keyword);
  return value != nullptr ? json::integer(*value) : std::nullopt;
}

Status too_many(const std::string& place, const std::string& name, const std::string& what) {
  const std::string here = place + ".properties." + name;
  return invalid(here + " brings " + what, here, "schema_too_large");
}

}  // namespace

Status ObjectSizes::add(const Json& node, const std::string& place) {
  const Json* properties = json::member(node, "properties");
  if (properties == nullptr) return {};
  const Json* listed = json::member(node, "required");
  std::unordered_set<std::string_view> required;
  if (listed != nullptr) {
    for (const Json& name : json::items(*listed)) {
      if (const std::string* text = json::text(name)) required.insert(*text);
    }
  }
  const Json* others = json::member(node, "additionalProperties");
  const bool open = others != nullptr && *others != Json(false);
  const auto least = count_of(node, "minProperties"), most = count_of(node, "maxProperties");
  const auto names = static_cast<std::int64_t>(properties->size());
  NameTree tree;
  int optional = 0;
  std::int64_t index = 0, needed = 0;
  for (const auto& [name, schema] : json::members(*properties)) {
    if (!required.contains(name) && ++optional > limits_.optional_properties) {
      return too_many(place, name,
                      "its object to more than " + std::to_string(limits_.optional_properties) +
                          " properties that may be absent: name others in required");
    }
    if (open && (open_name_chars_ += tree.add(name)) > limits_.open_name_chars) {
      return too_many(place, name,
                      "the names that stand beside additionalProperties to more than " +
                          std::to_string(limits_.open_name_chars) +
                          " characters, counting equal beginnings once: set additionalProperties to false");
    }
    needed += required.contains(name) ? 1 : 0;
    ++index;
    if (!least && !most) continue;
    // The grammar has a rule for each number of properties that may have come behind this one.
    const std::int64_t low = std::max({std::int64_t{1}, needed, least.value_or(0) - (names - index)});
    const std::int64_t high = std::min(index, most.value_or(index));
    counted_ += std::max<std::int64_t>(high - low + 1, 0);
    if (counted_ > limits_.counted_properties) {
      return too_many(place, name,
                      std::string("what has to be counted for ") +
                          (least ? "minProperties" : "maxProperties") + " to more than " +
                          std::to_string(limits_.counted_properties) +
                          " rules: declare fewer properties, or leave it out");
    }
  }
  return {};
}

}  // namespace troupe::grammar
