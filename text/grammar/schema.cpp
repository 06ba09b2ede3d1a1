#include "text/grammar/schema.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "text/grammar/schema_walk.h"

namespace troupe::grammar {
namespace {

constexpr const char* kNeverEnforced[] = {
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependentRequired",
    "dependencies",
    "contains",
    "additionalItems",
    "$dynamicRef",
    "$recursiveRef",
};
constexpr std::size_t kMostExclusive = 256;  // schemas of a oneOf: each is compared with each
constexpr const char* kIgnorable[] = {"minContains", "maxContains"};  // without contains they mean nothing
constexpr const char* kComposing[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

/// The begin of a client's text, between quotes.
std::string quoted(const std::string& text) {
  constexpr std::size_t kMost = 64;  // bytes
  return "\"" + utf8::to_valid(text.substr(0, kMost)) + (text.size() > kMost ? "…\"" : "\"");
}

/// The members of an object that hold others, taken from it: a reference may lead through them, as through
/// "$defs".
Json nested_members(Json& node) {
  Json kept = Json::object();
  json::Members& members = *json::object(kept);
  for (auto& [name, value] : *json::object(node)) {
    if (value.is_structured() && !value.empty()) members.emplace_back(name, std::move(value));
  }
  return kept;
}

struct Group {
  const char* type;
  std::vector<const char*> keywords;
};
const Group kGroups[] = {
    {"object",
     {"properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties",
      "propertyNames", "minProperties", "maxProperties"}},
    {"array", {"items", "prefixItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems"}},
    {"string", {"pattern", "minLength", "maxLength", "format"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
};

/// Numbers of the places within a document, so that comparing two of them does not read their names. No
/// reference can name a child with an empty name, or with one that has a slash in it.
class Pointers {
 public:
  static constexpr std::uint32_t kRoot = 0;

  std::uint32_t child(std::uint32_t place, std::string_view name) {
    std::string key(reinterpret_cast<const char*>(&place), sizeof place);
    return numbers_.emplace(key.append(name), static_cast<std::uint32_t>(numbers_.size()) + 1).first->second;
  }

 private:
  std::unordered_map<std::string, std::uint32_t> numbers_;  // by the place above and the name in it
};

class Walk {
 public:
  Walk(Json& root, std::string place, const SchemaLimits& limits)
      : root_(root), definitions_(root), place_(std::move(place)), limits_(limits), sizes_(limits) {}

  Status run() {
    if (Status status = visit(root_, place_, Pointers::kRoot, 1); !status.ok()) return status;
    while (!references_.empty()) {
      const auto [reference, place] = std::move(references_.back());
      references_.pop_back();
      std::string target_place = place_;
      std::uint32_t pointer = Pointers::kRoot;
      for (std::size_t i = 2, end = 0; i < reference.size(); i = end + 1) {
        end = std::min(reference.find('/', i), reference.size());
        if (end == i) continue;
        const std::string_view name = std::string_view(reference).substr(i, end - i);
        target_place += "." + shown(name);
        pointer = pointers_.child(pointer, name);
      }
      if (visited_.contains(pointer)) continue;
      Json* target = definitions_.find(reference);
      if (target == nullptr) return malformed(place, "points to nothing: " + quoted(reference));
      const int depth = static_cast<int>(std::count(reference.begin(), reference.end(), '/')) + 1;
      if (Status status = visit(*target, target_place, pointer, depth); !status.ok()) return status;
    }
    // What a reference leads to may have been rewritten since: as a schema of another type it has no members.
    for (const auto& [reference, place] : referred_) {
      if (definitions_.find(reference) == nullptr)
        return malformed(place, "points into a schema that has no such part");
    }
    return check_finite(root_, definitions_, place_);
  }

 private:
  Status visit(Json& node, const std::string& place, std::uint32_t pointer, int depth) {
    if (!visited_.insert(pointer).second) return {};
    if (visited_.size() > static_cast<std::size_t>(limits_.schemas)) {
      return too_large(place,
                       "brings the schema to more than " + std::to_string(limits_.schemas) + " schemas");
    }
    if (depth > limits_.depth) {
      return too_large(place, "is nested deeper than " + std::to_string(limits_.depth) + " levels");
    }
    if (node.is_boolean()) {
      if (!json::is_true(&node)) return unsatisfiable(place, "is false: no value fits it");
      node = Json::object();
      return {};
    }
    if (!node.is_object()) return malformed(place, "must be a schema (an object or a boolean)");
    for (const char* keyword : kNeverEnforced) {
      if (node.contains(keyword)) return unsupported(place + "." + keyword, "cannot be enforced");
    }
    for (const char* keyword : kIgnorable) node.erase(keyword);

    const char* composing = nullptr;
    for (const char* keyword : kComposing) {
      if (!json::has(node, keyword)) continue;
      if (composing != nullptr) {
        return unsupported(place + "." + keyword, std::string("cannot be enforced beside ") + composing);
      }
      composing = keyword;
    }
    Status status = composing != nullptr ? compose(node, place, composing) : check_types(node, place);
    if (status.ok()) status = count(node, place);
    if (!status.ok()) return status;
    for_each_child(node, [&](Json& child, const char* keyword, const std::string* name) {
      if (!status.ok()) return;
      std::uint32_t below = pointers_.child(pointer, keyword);
      if (name != nullptr) below = pointers_.child(below, *name);
      status = visit(child, child_place(place, keyword, name), below, depth + 1);
    });
    return status;
  }

  /// A node with one of kComposing. Assertions beside it would be ignored: only `type` is understood there.
  Status compose(Json& node, const std::string& place, const std::string& keyword) {
    for (const Group& group : kGroups) {
      for (const char* other : group.keywords) {
        if (node.contains(other))
          return unsupported(place + "." + other, "cannot be enforced beside " + keyword);
      }
    }
    std::vector<std::string> types;
    if (node.contains("type")) {
      if (Status status = read_types(node, place, types); !status.ok()) return status;
    }
    const std::string here = place + "." + keyword;
    if (keyword == "$ref") {
      if (!types.empty()) return unsupported(place + ".type", "cannot be enforced beside $ref");
      return refer(*json::member(node, "$ref"), here);
    }
    if (keyword == "const" || keyword == "enum") return choose(node, keyword, here, types);

    Json& options = *json::member(node, keyword);
    if (!options.is_array() || options.empty())
      return malformed(here, "must be a list of schemas that is not empty");
    if (keyword == "allOf" && options.size() > 1) {
      return unsupported(here, "cannot be enforced with more than one schema");
    }
    if (!types.empty()) {
      if (Status status = narrow(options, *json::member(node, "type"), here); !status.ok()) return status;
      node.erase("type");
    }
    if (keyword == "oneOf") {
      if (options.size() > kMostExclusive) {
        return too_large(here, "has more than " + std::to_string(kMostExclusive) + " schemas");
      }
      const auto most_values = static_cast<std::size_t>(limits_.enum_values);
      const Exclusion exclusion = definitions_.exclusion(options, most_values);
      if (exclusion == Exclusion::too_many) {
        return too_large(here, "has schemas with more than " + std::to_string(most_values) + " values");
      }
      if (exclusion == Exclusion::unknown) {
        return unsupported(
            here,
            "cannot be enforced: some value may fit two of its schemas. Allowed are schemas of "
            "different types, distinct enum or const values, or objects with a required property "
            "whose const or enum differs; else use anyOf");
      }
      Json moved = std::move(options);
      node.erase("oneOf");
      node["anyOf"] = std::move(moved);
    }
    return {};
  }

  Status refer(const Json& reference, const std::string& here) {
    const std::string* given = json::text(reference);
    if (given == nullptr) return malformed(here, "must be a string");
    const std::string& text = *given;
    if (text != "#" && !text.starts_with("#/")) {
      return unsupported(here, "must begin with \"#/\", got " + quoted(text) +
                                   ": only definitions within the schema are read");
    }
    if (text.find_first_of("~%") != text.npos) return unsupported(here, "must not contain ~ or %");
    if (definitions_.find(text) == nullptr) return malformed(here, "points to nothing: " + quoted(text));
    references_.emplace_back(text, here);
    referred_.emplace(text, here);
    return {};
  }

  /// Keeps the values of const or enum that have one of the types.
  Status choose(Json& node, const std::string& keyword, const std::string& here,
                const std::vector<std::string>& types) {
    Json& listed = *json::member(node, keyword);
    Json values = keyword == "const" ? Json::array({listed}) : std::move(listed);
    if (!values.is_array() || values.empty()) return malformed(here, "must be a list that is not empty");
    if (!types.empty()) {
      Json fitting = Json::array();
      for (Json& value : values) {
        const auto fits = [&](const std::string& type) { return has_type(value, type); };
        if (std::any_of(types.begin(), types.end(), fits)) fitting.push_back(std::move(value));
      }
      if (fitting.empty()) return unsatisfiable(here, "has no value of the type that is required beside it");
      values = std::move(fitting);
      node.erase("type");
    }
    enum_values_ += static_cast<int>(values.size());
    if (enum_values_ > limits_.enum_values) {
      return too_large(here,
                       "brings the schema to more than " + std::to_string(limits_.enum_values) + " values");
    }
    for (const Json& value : values) {
      if (const std::string* text = json::text(value)) name_chars_ += text->size();
    }
    node.erase(keyword);
    node["enum"] = std::move(values);
    return check_names(here);
  }

  /// `type` beside anyOf, oneOf or allOf: each option without a type takes it over.
  static Status narrow(Json& options, const Json& type, const std::string& here) {
    for (std::size_t i = 0; i < options.size(); ++i) {
      Json& option = options[i];
      if (!option.is_object()) continue;
      const std::string place = here + "." + std::to_string(i);
      for (const char* keyword : {"$ref", "anyOf", "oneOf", "allOf"}) {
        if (option.contains(keyword)) {
          return unsupported(place + "." + keyword,
                             "cannot be enforced here, because a type is required beside " +
                                 here.substr(here.rfind('.') + 1));
        }
      }
      const Json* own = json::member(option, "type");
      if (own == nullptr) {
        json::put(option, "type", type);
      } else if (*own != type) {
        return unsupported(place + ".type",
                           "must be the type that is required beside " + here.substr(here.rfind('.') + 1));
      }
    }
    return {};
  }

  /// Each type once, also in the node.
  static Status read_types(Json& node, const std::string& place, std::vector<std::string>& types) {
    Json& type = *json::member(node, "type");
    const Json list = type.is_array() ? type : Json::array({type});
    if (list.empty()) return malformed(place + ".type", "must not be an empty list");
    for (const Json& name : list) {
      const std::string* text = json::text(name);
      if (text == nullptr || !is_type_name(*text)) {
        return malformed(place + ".type",
                         "must be null, boolean, object, array, number, string, integer or a list of "
                         "these");
      }
      if (std::find(types.begin(), types.end(), *text) == types.end()) types.push_back(*text);
    }
    if (types.size() < list.size()) type = types;
    return {};
  }

  /// A node without a composing keyword. A missing type is that of the keywords that are there.
  Status check_types(Json& node, const std::string& place) {
    std::vector<std::string> types;
    if (node.contains("type")) {
      if (Status status = read_types(node, place, types); !status.ok()) return status;
    } else {
      for (const Group& group : kGroups) {
        const auto present = [&](const char* keyword) { return node.contains(keyword); };
        if (std::any_of(group.keywords.begin(), group.keywords.end(), present))
          types.emplace_back(group.type);
      }
      if (types.empty()) {
        node = nested_members(node);  // anything; annotations do not matter
        return {};
      }
      if (types.size() == 1) {
        node["type"] = types.front();
      } else {
        node["type"] = types;
      }
    }
    const auto has = [&](const char* type) {
      return std::find(types.begin(), types.end(), type) != types.end();
    };
    Status status;
    if (has("object")) status = check_object(node, place, limits_);
    if (status.ok() && has("array")) status = check_array(node, place);
    if (status.ok() && has("string")) status = check_string(node, place, limits_);
    if (status.ok() && (has("integer") || has("number"))) {
      status = check_number(node, place, has("integer"), has("number"));
    }
    // The keywords of other types say nothing about values of these.
    for (const Group& group : kGroups) {
      if (has(group.type) || (group.type == std::string_view("number") && has("integer"))) continue;
      for (const char* keyword : group.keywords) node.erase(keyword);
    }
    return status;
  }

  Status count(const Json& node, const std::string& place) {
    if (const Json* properties = json::member(node, "properties")) {
      for (const auto& [name, child] : json::members(*properties)) {
        name_chars_ += name.size();
        if (++properties_ > limits_.properties) {
          return too_large(
              place + ".properties." + shown(name),
              "brings the schema to more than " + std::to_string(limits_.properties) + " properties");
        }
      }
      if (Status status = sizes_.add(node, place); !status.ok()) return status;
    }
    return check_names(place);
  }

  Status check_names(const std::string& place) const {
    if (name_chars_ <= limits_.name_chars) return {};
    return too_large(place, "brings the names and values of the schema to more than " +
                                std::to_string(limits_.name_chars) + " characters");
  }

  static Status too_large(const std::string& place, const std::string& why) {
    return invalid(place + " " + why, place, "schema_too_large");
  }

  Json& root_;
  Definitions definitions_;
  const std::string place_;
  const SchemaLimits& limits_;
  Pointers pointers_;
  std::unordered_set<std::uint32_t> visited_;
  std::vector<std::pair<std::string, std::string>> references_;  // to visit, and where each was found
  std::unordered_map<std::string, std::string> referred_;        // all of them
  ObjectSizes sizes_;
  int properties_ = 0;
  int enum_values_ = 0;
  std::size_t name_chars_ = 0;
};

}  // namespace

std::string shown(std::string_view name) {
  constexpr std::size_t kMost = 64;  // bytes
  if (name.size() <= kMost) return std::string(name);
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  return std::string(name.substr(0, end)) + "…";
}

Status unsupported(const std::string& place, const std::string& why) {
  return invalid(place + " " + why, place, "unsupported_schema");
}
Status malformed(const std::string& place, const std::string& why) {
  return invalid(place + " " + why, place, "invalid_schema");
}
Status unsatisfiable(const std::string& place, const std::string& why) {
  return invalid(place + " " + why, place, "unsatisfiable_schema");
}

std::size_t open_name_chars_for(int vocabulary) {
  constexpr std::size_t kLooks =
      14'000'000;  // at a token: about 6 s on a slow core, of the 10 s that a form has
  return std::clamp<std::size_t>(kLooks / static_cast<std::size_t>(std::max(vocabulary, 1)), 100, 2000);
}

Status enforceable(Json& schema, const std::string& place, const SchemaLimits& limits) {
  return Walk(schema, place, limits).run();
}

}  // namespace troupe::grammar
