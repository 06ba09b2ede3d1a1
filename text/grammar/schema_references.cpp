// References, the disjointness of oneOf's options, and schemas that no finite value fits.
#include <algorithm>
#include <array>
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
    const auto reference = at->find("$ref");
    if (reference == at->end()) return at;
    at = reference->is_string() ? resolve(root, reference->get<std::string>()) : nullptr;
    if (at == nullptr) return nullptr;
  }
  return nullptr;
}

/// Values of a const or enum; empty when the schema has neither.
std::vector<Json> listed(const Json& schema) {
  if (!schema.is_object()) return {};
  if (const auto it = schema.find("const"); it != schema.end()) return {*it};
  if (const auto it = schema.find("enum"); it != schema.end() && it->is_array()) return *it;
  return {};
}

std::vector<std::string> types_of(const Json& schema) {
  if (!schema.is_object()) return {};
  const auto it = schema.find("type");
  if (it == schema.end()) return {};
  if (it->is_string()) return {it->get<std::string>()};
  std::vector<std::string> names;
  if (it->is_array()) {
    for (const Json& name : *it) {
      if (!name.is_string()) return {};
      names.push_back(name.get<std::string>());
    }
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
  const auto required = a.find("required"), properties = a.find("properties");
  const auto other_required = b.find("required"), other_properties = b.find("properties");
  if (required == a.end() || properties == a.end() || other_required == b.end() ||
      other_properties == b.end() || !required->is_array() || !other_required->is_array() ||
      !properties->is_object() || !other_properties->is_object()) {
    return false;
  }
  for (const Json& name : *required) {
    if (!name.is_string() ||
        std::find(other_required->begin(), other_required->end(), name) == other_required->end()) {
      continue;
    }
    const auto mine = properties->find(name.get<std::string>()),
               other = other_properties->find(name.get<std::string>());
    if (mine == properties->end() || other == other_properties->end()) continue;
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
      const auto reference = nodes_[i].schema->find("$ref");
      if (reference == nodes_[i].schema->end()) continue;
      const auto text = reference->get<std::string>();
      if (Json* target = resolve(root_, text)) {
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
    for_each_child(schema, [&](Json& child, const char* keyword, const std::string& name) {
      collect(child, child_place(place, keyword, name));
    });
  }

  bool known(const Json& schema) const {
    if (!schema.is_object()) return true;
    const auto it = index_.find(&schema);
    return it == index_.end() || nodes_[it->second].finite;
  }

  bool judge(const Json& schema) const {
    const auto member = [&](const char* keyword) -> const Json* {
      const auto it = schema.find(keyword);
      return it == schema.end() ? nullptr : &*it;
    };
    if (member("$ref")) {
      const auto it = targets_.find(&schema);
      return it == targets_.end() || known(*it->second);
    }
    if (const Json* options = member("anyOf")) {
      return std::any_of(options->begin(), options->end(), [&](const Json& option) { return known(option); });
    }
    if (const Json* parts = member("allOf")) {
      return std::all_of(parts->begin(), parts->end(), [&](const Json& part) { return known(part); });
    }
    const auto types = types_of(schema);
    return types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
             return type == "object" ? object(schema) : type != "array" || array(schema);
           });
  }

  bool object(const Json& schema) const {
    const auto required = schema.find("required"), properties = schema.find("properties");
    if (required == schema.end() || properties == schema.end()) return true;
    return std::all_of(required->begin(), required->end(), [&](const Json& name) {
      const auto it = properties->find(name.get<std::string>());
      return it == properties->end() || known(*it);
    });
  }

  bool array(const Json& schema) const {
    const std::int64_t least = schema.value("minItems", std::int64_t{0});
    std::int64_t position = 0;
    if (const auto prefix = schema.find("prefixItems"); prefix != schema.end()) {
      for (; position < static_cast<std::int64_t>(prefix->size()); ++position) {
        if (position < least && !known((*prefix)[static_cast<std::size_t>(position)])) return false;
      }
    }
    const auto items = schema.find("items");
    return least <= position || items == schema.end() || known(*items);
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
  return value.is_number_integer() ||
         (value.is_number_float() &&
          value.get<double>() == static_cast<double>(static_cast<long long>(value.get<double>())));
}

Json* resolve(Json& root, const std::string& reference) {
  Json* at = &root;
  for (std::size_t i = 1, end = 0; i < reference.size(); i = end) {
    ++i;  // the slash
    end = std::min(reference.find('/', i), reference.size());
    if (end == i) continue;
    if (!at->is_object()) return nullptr;
    const auto it = at->find(reference.substr(i, end - i));
    if (it == at->end()) return nullptr;
    at = &*it;
  }
  return at;
}

bool are_disjoint(Json& root, const Json& options) {
  std::vector<const Json*> schemas;
  for (const Json& option : options) {
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
