// References, the disjointness of oneOf's options, and schemas that no finite value fits.
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <unordered_map>

#include "text/grammar/schema_walk.h"

namespace troupe::grammar {
namespace {

constexpr int kMaxPasses = 200;           // chains of references that are longer count as endless
constexpr std::size_t kMaxHops = 64;  // references to references

/// The schema behind references to references; null for a loop of them.
const Json* follow(Json& root, const Json& node) {
  const Json* at = &node;
  for (std::size_t hops = 0; hops < kMaxHops; ++hops) {
    if (!at->is_object()) return at;
    const Json* reference = json::member(at, "$ref");
    if (reference == nullptr) return at;
    const std::string* text = json::text(reference);
    at = text != nullptr ? resolve(root, *text) : nullptr;
    if (at == nullptr) return nullptr;
  }
  return nullptr;
}

/// Values of a const or enum; empty when the schema has neither.
std::vector<Json> listed(const Json& schema) {
  if (const Json* value = json::member(schema, "const")) return {*value};
  const Json* values = json::member(schema, "enum");
  if (values == nullptr) return {};
  const auto all = json::items(*values);
  return {all.begin(), all.end()};
}

std::vector<std::string> types_of(const Json& schema) {
  const Json* type = json::member(schema, "type");
  if (type == nullptr) return {};
  if (const std::string* text = json::text(type)) return {*text};
  std::vector<std::string> names;
  for (const Json& name : json::items(*type)) {
    const std::string* text = json::text(name);
    if (text == nullptr) return {};
    names.push_back(*text);
  }
  return names;
}

bool overlap(const std::vector<Json>& a, const std::vector<Json>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](const Json& x) { return std::find(b.begin(), b.end(), x) != b.end(); });
}

bool numeric(const std::string& type) { return type == "integer" || type == "number"; }

/// True if no value has a type of both lists.
bool types_differ(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  for (const std::string& x : a) {
    for (const std::string& y : b) {
      if (x == y || (numeric(x) && numeric(y))) return false;
    }
  }
  return true;
}

/// True if both are objects that require the same property with values that differ.
bool discriminated(const Json& a, const Json& b) {
  const Json* required = json::member(a, "required");
  const Json* properties = json::member(a, "properties");
  const Json* other_required = json::member(b, "required");
  const Json* other_properties = json::member(b, "properties");
  if (required == nullptr || other_required == nullptr) return false;
  const auto others = json::items(*other_required);
  for (const Json& name : json::items(*required)) {
    const std::string* text = json::text(name);
    if (text == nullptr || std::find(others.begin(), others.end(), name) == others.end()) continue;
    const Json* mine = json::member(properties, *text);
    const Json* other = json::member(other_properties, *text);
    if (mine == nullptr || other == nullptr) continue;
    const auto values = listed(*mine), other_values = listed(*other);
    if (!values.empty() && !other_values.empty() && !overlap(values, other_values)) return true;
  }
  return false;
}

bool exclude_each_other(const Json& a, const Json& b) {
  const auto values = listed(a), other_values = listed(b);
  if (!values.empty() && !other_values.empty()) return !overlap(values, other_values);
  const auto types = types_of(a), other_types = types_of(b);
  const auto untouched = [](const std::vector<Json>& all, const std::vector<std::string>& names) {
    return !names.empty() && std::none_of(all.begin(), all.end(), [&](const Json& value) {
      return std::any_of(names.begin(), names.end(),
                         [&](const std::string& name) { return has_type(value, name); });
    });
  };
  if (!values.empty()) return untouched(values, other_types);
  if (!other_values.empty()) return untouched(other_values, types);
  if (types.empty() || other_types.empty()) return false;
  if (types_differ(types, other_types)) return true;
  const bool objects = types == std::vector<std::string>{"object"} && types == other_types;
  return objects && discriminated(a, b);
}

/// Least fixed point of "has a value of finite size" over all schemas of a document.
class Finite {
 public:
  explicit Finite(Json& root) : root_(root) {}

  Status run(const std::string& place) {
    collect(root_, place);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {  // grows while it runs
      const std::string* text = json::text(json::member(nodes_[i].schema, "$ref"));
      if (text == nullptr) continue;
      if (Json* target = resolve(root_, *text)) {
        targets_[nodes_[i].schema] = target;
        collect(*target, nodes_[i].place);
      }
    }
    // From the last to the first, so that a schema mostly comes after those that it consists of.
    bool changed = true;
    for (int pass = 0; changed && pass < kMaxPasses; ++pass) {
      changed = false;
      for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
        if (!node->finite && judge(*node->schema)) node->finite = changed = true;
      }
    }
    for (const Node& node : nodes_) {
      if (!node.finite)
        return unsatisfiable(node.place, "requires itself again and again: no value that ends fits it");
    }
    return {};
  }

 private:
  struct Node {
    Json* schema;
    std::string place;
    bool finite = false;
  };

  void collect(Json& schema, const std::string& place) {
    if (!schema.is_object() || !index_.emplace(&schema, nodes_.size()).second) return;
    nodes_.push_back({&schema, place});
    for_each_child(schema, [&](Json& child, const char* keyword, const std::string* name) {
      collect(child, child_place(place, keyword, name));
    });
  }

  bool known(const Json& schema) const {
    if (!schema.is_object()) return true;
    const auto it = index_.find(&schema);
    return it == index_.end() || nodes_[it->second].finite;
  }

  bool judge(const Json& schema) const {
    const auto member = [&](const char* keyword) { return json::member(schema, keyword); };
    if (member("$ref") != nullptr) {
      const auto it = targets_.find(&schema);
      return it == targets_.end() || known(*it->second);
    }
    if (const Json* options = member("anyOf")) {
      const auto all = json::items(*options);
      return std::any_of(all.begin(), all.end(), [&](const Json& option) { return known(option); });
    }
    if (const Json* parts = member("allOf")) {
      const auto all = json::items(*parts);
      return std::all_of(all.begin(), all.end(), [&](const Json& part) { return known(part); });
    }
    const auto types = types_of(schema);
    return types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
             return type == "object" ? object(schema) : type != "array" || array(schema);
           });
  }

  bool object(const Json& schema) const {
    const Json* required = json::member(schema, "required");
    const Json* properties = json::member(schema, "properties");
    if (required == nullptr) return true;
    const auto names = json::items(*required);
    return std::all_of(names.begin(), names.end(), [&](const Json& name) {
      const std::string* text = json::text(name);
      const Json* property = text != nullptr ? json::member(properties, *text) : nullptr;
      return property == nullptr || known(*property);
    });
  }

  bool array(const Json& schema) const {
    const Json* bound = json::member(schema, "minItems");
    const std::int64_t least = bound != nullptr ? json::integer(*bound).value_or(0) : 0;
    std::int64_t position = 0;
    if (const Json* prefix = json::member(schema, "prefixItems")) {
      for (const Json& item : json::items(*prefix)) {
        if (position++ < least && !known(item)) return false;
      }
    }
    const Json* items = json::member(schema, "items");
    return least <= position || items == nullptr || known(*items);
  }

  Json& root_;
  std::deque<Node> nodes_;  // collect() adds to it while it holds the place of one
  std::unordered_map<const Json*, std::size_t> index_;
  std::unordered_map<const Json*, const Json*> targets_;
};

}  // namespace

bool is_type_name(std::string_view name) {
  constexpr std::array<std::string_view, 7> kNames = {"null",   "boolean", "object", "array",
                                                      "number", "string",  "integer"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool has_type(const Json& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  const auto number = json::number(value);
  return number && std::trunc(*number) == *number;
}

Json* resolve(Json& root, const std::string& reference) {
  Json* at = &root;
  for (std::size_t i = 1, end = 0; i < reference.size(); i = end) {
    ++i;  // the slash
    end = std::min(reference.find('/', i), reference.size());
    if (end == i) continue;
    at = json::member(*at, std::string_view(reference).substr(i, end - i));
    if (at == nullptr) return nullptr;
  }
  return at;
}

bool are_disjoint(Json& root, const Json& options) {
  std::vector<const Json*> schemas;
  for (const Json& option : json::items(options)) {
    const Json* schema = follow(root, option);
    if (schema == nullptr) return false;
    schemas.push_back(schema);
  }
  for (std::size_t i = 0; i < schemas.size(); ++i) {
    for (std::size_t k = i + 1; k < schemas.size(); ++k) {
      if (!exclude_each_other(*schemas[i], *schemas[k])) return false;
    }
  }
  return true;
}

Status check_finite(Json& root, const std::string& place) { return Finite(root).run(place); }

}  // namespace troupe::grammar
