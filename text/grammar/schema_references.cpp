// References, the disjointness of oneOf's options, and schemas that no finite value fits.
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "text/grammar/schema_walk.h"

namespace troupe::grammar {
namespace {

constexpr std::size_t kMaxHops = 64;       // references to references
constexpr std::size_t kWorthAnIndex = 16;  // members of an object
constexpr std::size_t kMostTypes = 8;      // names of types: there are seven

using Values = std::vector<Json>;  ///< ascending

/// Values of a const or enum; empty when the schema has neither.
Values values_of(const Json& schema) {
  if (const Json* value = json::member(schema, "const")) return {*value};
  const Json* list = json::member(schema, "enum");
  if (list == nullptr) return {};
  const auto all = json::items(*list);
  Values values(all.begin(), all.end());
  std::sort(values.begin(), values.end());
  return values;
}

std::size_t count_of(const Json& schema) {
  if (json::has(schema, "const")) return 1;
  const Json* list = json::member(schema, "enum");
  return list == nullptr ? 0 : json::items(*list).size();
}

/// Each name once. Empty when there is none, or one that is no text.
std::vector<std::string> types_of(const Json& schema) {
  const Json* type = json::member(schema, "type");
  if (type == nullptr) return {};
  if (const std::string* text = json::text(type)) return {*text};
  std::vector<std::string> names;
  for (const Json& name : json::items(*type)) {
    const std::string* text = json::text(name);
    if (text == nullptr) return {};
    if (std::find(names.begin(), names.end(), *text) != names.end()) continue;
    if (names.size() == kMostTypes) return {};
    names.push_back(*text);
  }
  return names;
}

/// The properties that an object requires, among those that it declares: f(name, schema).
template <class F>
void for_each_required(const Json& schema, F f) {
  const Json* required = json::member(schema, "required");
  const Json* properties = json::member(schema, "properties");
  if (required == nullptr || properties == nullptr) return;
  std::unordered_set<std::string_view> names;
  for (const Json& name : json::items(*required)) {
    if (const std::string* text = json::text(name)) names.insert(*text);
  }
  for (const auto& [name, child] : json::members(*properties)) {
    if (names.contains(name)) f(name, child);
  }
}

bool overlap(const Values& a, const Values& b) {
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    if (*x < *y) {
      ++x;
    } else if (*y < *x) {
      ++y;
    } else {
      return true;
    }
  }
  return false;
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

/// Which schemas of a document have a value of finite size. A schema has one if all schemas that one of its
/// alternatives needs have one; the loop begins with the alternatives that need none.
class Finite {
 public:
  Finite(Json& root, Definitions& definitions) : root_(root), definitions_(definitions) {}

  Status run(const std::string& place) {
    collect(root_, 0, {});
    for (std::size_t i = 0; i < nodes_.size(); ++i) {  // grows while it runs
      const std::string* reference = json::text(json::member(nodes_[i].schema, "$ref"));
      if (reference == nullptr) continue;
      if (Json* target = definitions_.find(*reference)) {
        nodes_[i].target = target;
        collect(*target, i, {});
      }
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) judge(i);
    while (!proven_.empty()) {
      const std::size_t node = proven_.back();
      proven_.pop_back();
      for (const std::size_t alternative : nodes_[node].users) {
        if (--alternatives_[alternative].missing == 0) prove(alternatives_[alternative].node);
      }
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].finite)
        return unsatisfiable(place_of(i, place),
                             "requires itself again and again: no value that ends fits it");
    }
    return {};
  }

 private:
  struct Node {
    Json* schema;
    std::size_t above;             // the node that it was found in
    std::string step;              // from there, as places write it
    const Json* target = nullptr;  // of its $ref
    bool finite = false;
    std::vector<std::size_t> users{};  // alternatives that need it
  };
  struct Alternative {
    std::size_t node = 0;     // that it would make finite
    std::size_t missing = 0;  // schemas that it needs and that are not known to be finite
  };

  void collect(Json& schema, std::size_t above, std::string step) {
    if (!schema.is_object() || !index_.emplace(&schema, nodes_.size()).second) return;
    const std::size_t own = nodes_.size();
    nodes_.push_back({&schema, above, std::move(step)});
    for_each_child(schema, [&](Json& child, const char* keyword, const std::string* name) {
      collect(child, own, child_place({}, keyword, name));
    });
  }

  std::string place_of(std::size_t node, const std::string& root) const {
    std::vector<const std::string*> steps;
    for (; node != 0; node = nodes_[node].above) steps.push_back(&nodes_[node].step);
    std::string out = root;
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) out += **step;
    return out;
  }

  void prove(std::size_t node) {
    if (std::exchange(nodes_[node].finite, true)) return;
    proven_.push_back(node);
  }

  /// The node is finite if all of these are.
  void add(std::size_t node, const std::vector<const Json*>& needed) {
    const std::size_t own = alternatives_.size();
    alternatives_.push_back({node, 0});
    for (const Json* schema : needed) {
      const auto it = index_.find(schema);
      if (it == index_.end()) continue;  // a boolean
      nodes_[it->second].users.push_back(own);
      ++alternatives_[own].missing;
    }
    if (alternatives_[own].missing == 0) prove(node);
  }

  void judge(std::size_t node) {
    const Json& schema = *nodes_[node].schema;
    if (json::has(schema, "$ref")) {
      return nodes_[node].target == nullptr ? add(node, {}) : add(node, {nodes_[node].target});
    }
    if (const Json* options = json::member(schema, "anyOf")) {
      for (const Json& option : json::items(*options)) add(node, {&option});
      return;
    }
    if (const Json* parts = json::member(schema, "allOf")) {
      std::vector<const Json*> needed;
      for (const Json& part : json::items(*parts)) needed.push_back(&part);
      return add(node, needed);
    }
    const auto types = types_of(schema);
    if (types.empty()) return add(node, {});
    for (const std::string& type : types) {
      std::vector<const Json*> needed;
      if (type == "object") {
        for_each_required(schema, [&](const std::string&, const Json& child) { needed.push_back(&child); });
      } else if (type == "array") {
        needed = items_of(schema);
      }
      add(node, needed);
    }
  }

  static std::vector<const Json*> items_of(const Json& schema) {
    const Json* bound = json::member(schema, "minItems");
    const std::int64_t least = bound != nullptr ? json::integer(*bound).value_or(0) : 0;
    std::int64_t position = 0;
    std::vector<const Json*> needed;
    if (const Json* prefix = json::member(schema, "prefixItems")) {
      for (const Json& item : json::items(*prefix)) {
        if (position++ < least) needed.push_back(&item);
      }
    }
    const Json* items = json::member(schema, "items");
    if (least > position && items != nullptr) needed.push_back(items);
    return needed;
  }

  Json& root_;
  Definitions& definitions_;
  std::deque<Node> nodes_;
  std::vector<Alternative> alternatives_;
  std::vector<std::size_t> proven_;  // to tell their users
  std::unordered_map<const Json*, std::size_t> index_;
};

}  // namespace

/// What tells the values of a schema from those of others.
struct Definitions::Profile {
  bool lists = false;
  Values values;  ///< of its const or enum
  std::vector<std::string> types;
  std::size_t count = 0;  ///< of all values here
  /// Of required properties with a const or an enum: their values.
  std::unordered_map<std::string, Values> tags;
};

namespace {

/// Stops when it has counted more than `most` values.
Definitions::Profile profile_of(const Json& schema, std::size_t most) {
  Definitions::Profile out;
  out.count = count_of(schema);
  if (out.count > most) return out;
  out.values = values_of(schema);
  out.lists = !out.values.empty();
  out.types = types_of(schema);
  for_each_required(schema, [&](const std::string& name, const Json& child) {
    const std::size_t count = count_of(child);
    out.count += count;
    if (count > 0 && out.count <= most) out.tags.emplace(name, values_of(child));
  });
  return out;
}

/// True if both are objects that require the same property with values that differ.
bool discriminated(const Definitions::Profile& a, const Definitions::Profile& b) {
  const auto& [few, many] =
      a.tags.size() < b.tags.size() ? std::tie(a.tags, b.tags) : std::tie(b.tags, a.tags);
  return std::any_of(few.begin(), few.end(), [&](const auto& tag) {
    const auto other = many.find(tag.first);
    return other != many.end() && !overlap(tag.second, other->second);
  });
}

bool exclude_each_other(const Definitions::Profile& a, const Definitions::Profile& b) {
  if (a.lists && b.lists) return !overlap(a.values, b.values);
  const auto untouched = [](const Values& all, const std::vector<std::string>& names) {
    return !names.empty() && std::none_of(all.begin(), all.end(), [&](const Json& value) {
      return std::any_of(names.begin(), names.end(),
                         [&](const std::string& name) { return has_type(value, name); });
    });
  };
  if (a.lists) return untouched(a.values, b.types);
  if (b.lists) return untouched(b.values, a.types);
  if (a.types.empty() || b.types.empty()) return false;
  if (types_differ(a.types, b.types)) return true;
  const bool objects = a.types == std::vector<std::string>{"object"} && a.types == b.types;
  return objects && discriminated(a, b);
}

}  // namespace

Definitions::Definitions(Json& root) : root_(root) {}
Definitions::~Definitions() = default;

Json* Definitions::member(Json& object, std::string_view name) {
  json::Members* members = json::object(object);
  if (members == nullptr) return nullptr;
  const auto at = [&](std::size_t i) { return members->begin() + static_cast<std::ptrdiff_t>(i); };
  std::unordered_map<std::string, std::size_t>* index = nullptr;
  if (members->size() > kWorthAnIndex) {
    index = &indexes_[members];
    const auto known = index->find(std::string(name));
    if (known != index->end() && known->second < members->size() && at(known->second)->first == name)
      return &at(known->second)->second;
  }
  const auto found =
      std::find_if(members->begin(), members->end(), [&](const auto& one) { return one.first == name; });
  if (found == members->end()) return nullptr;
  if (index != nullptr) {
    index->clear();
    for (std::size_t i = 0; i < members->size(); ++i) index->emplace(at(i)->first, i);
  }
  return &found->second;
}

Json* Definitions::find(std::string_view reference) {
  Json* at = &root_;
  for (std::size_t i = 1, end = 0; i < reference.size(); i = end) {
    ++i;  // the slash
    end = std::min(reference.find('/', i), reference.size());
    if (end == i) continue;
    at = member(*at, reference.substr(i, end - i));
    if (at == nullptr) return nullptr;
  }
  return at;
}

/// The schema behind references to references, and the last of them; null for a loop of them.
const Json* Definitions::follow(const Json& node, std::string& reference) {
  const Json* at = &node;
  for (std::size_t hops = 0; hops < kMaxHops; ++hops) {
    const Json* next = json::member(at, "$ref");
    if (next == nullptr) return at;
    const std::string* text = json::text(next);
    if (text == nullptr) return nullptr;
    reference = *text;
    at = find(reference);
    if (at == nullptr) return nullptr;
  }
  return nullptr;
}

Exclusion Definitions::exclusion(const Json& options, std::size_t most_values) {
  std::vector<std::shared_ptr<const Profile>> profiles;
  std::size_t values = 0;
  for (const Json& option : json::items(options)) {
    std::string reference;
    const Json* schema = follow(option, reference);
    if (schema == nullptr) return Exclusion::unknown;
    std::shared_ptr<const Profile> own;
    std::shared_ptr<const Profile>& profile = reference.empty() ? own : profiles_[reference];
    if (profile == nullptr) profile = std::make_shared<const Profile>(profile_of(*schema, most_values));
    values += profile->count;
    if (values > most_values) return Exclusion::too_many;
    profiles.push_back(profile);
  }
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    for (std::size_t k = i + 1; k < profiles.size(); ++k) {
      if (!exclude_each_other(*profiles[i], *profiles[k])) return Exclusion::unknown;
    }
  }
  return Exclusion::shown;
}

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

Status check_finite(Json& root, Definitions& definitions, const std::string& place) {
  return Finite(root, definitions).run(place);
}

}  // namespace troupe::grammar
