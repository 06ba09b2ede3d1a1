#pragma once
// The parts of enforceable() (text/grammar/schema.h). Private to the folder.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/grammar/schema.h"

namespace troupe::grammar {

/// "unsupported_schema": what `place` says cannot be enforced.
Status unsupported(const std::string& place, const std::string& why);
/// "invalid_schema": `place` is no JSON schema.
Status malformed(const std::string& place, const std::string& why);
/// "unsatisfiable_schema": no value fits.
Status unsatisfiable(const std::string& place, const std::string& why);

/// True for the JSON types of the standard: null, boolean, object, array, number, string, integer.
bool is_type_name(std::string_view name);
/// True if a value has the type; 1.0 is an integer.
bool has_type(const Json& value, std::string_view type);

/// A name as places show it: its begin when it is long, so that the places of many schemas below it stay
/// short.
std::string shown(std::string_view name);

/// Whether a value can fit two of the schemas of a oneOf.
enum class Exclusion : std::uint8_t {
  shown,     ///< it cannot
  unknown,   ///< it may, as far as can be seen
  too_many,  ///< they list too many values to compare them
};

/// The schemas that the references of one document name. Finds each in constant time, however many there are,
/// also while the document is rewritten.
class Definitions {
 public:
  explicit Definitions(Json& root);
  ~Definitions();
  Definitions(const Definitions&) = delete;
  Definitions& operator=(const Definitions&) = delete;

  /// The value that a reference within the document names ("#", "#/$defs/a"), or null. Walks over objects
  /// only and takes the names as they are written, as the compiler does.
  Json* find(std::string_view reference);

  /// Compares the schemas of a oneOf, at most `most_values` of const and enum together. Follows references.
  Exclusion exclusion(const Json& options, std::size_t most_values);

  struct Profile;

 private:
  Json* member(Json& object, std::string_view name);
  const Json* follow(const Json& node, std::string& reference);

  Json& root_;
  /// Of objects with many members, by their address: place of a member by its name. An entry may be out of
  /// date.
  std::unordered_map<const void*, std::unordered_map<std::string, std::size_t>> indexes_;
  std::unordered_map<std::string, std::shared_ptr<const Profile>> profiles_;  ///< by reference
};

/// The keywords of one type, at a node whose `type` is that type or a list with it.
Status check_string(Json& node, const std::string& place, const SchemaLimits& limits);
Status check_number(Json& node, const std::string& place, bool integer, bool number);
Status check_array(Json& node, const std::string& place);
Status check_object(Json& node, const std::string& place, const SchemaLimits& limits);

/// Adds up, over the objects of a schema, what makes their grammar large.
class ObjectSizes {
 public:
  /// `limits` outlive it.
  explicit ObjectSizes(const SchemaLimits& limits) : limits_(limits) {}

  /// Of an object that check_object() has rewritten. Not ok: "schema_too_large", with the property at which a
  /// bound was passed. Takes n log n for n properties.
  Status add(const Json& node, const std::string& place);

 private:
  const SchemaLimits& limits_;
  std::size_t open_name_chars_ = 0;
  std::int64_t counted_ = 0;
};

/// ok when every node reachable from the root has a value of finite size: a required property that contains
/// itself has none. `place` is the root's.
Status check_finite(Json& root, Definitions& definitions, const std::string& place);

/// A non-negative integer keyword: its value, nothing when absent; malformed otherwise.
Result<std::optional<std::int64_t>> count_keyword(const Json& node, const char* keyword,
                                                  const std::string& place);

/// Visits every schema below a node that enforceable() has rewritten: f(child, "properties", &name). The name
/// may be empty, as any text; it is null where the keyword itself is the schema.
template <class F>
void for_each_child(Json& node, F f) {
  if (!node.is_object()) return;
  for (const char* keyword : {"properties", "patternProperties"}) {
    Json* schemas = json::member(node, keyword);
    json::Members* all = schemas != nullptr ? json::object(*schemas) : nullptr;
    if (all == nullptr) continue;
    for (auto& [name, child] : *all) f(child, keyword, &name);
  }
  for (const char* keyword : {"items", "additionalProperties", "propertyNames"}) {
    if (Json* schema = json::member(node, keyword); schema != nullptr && !schema->is_boolean())
      f(*schema, keyword, static_cast<const std::string*>(nullptr));
  }
  for (const char* keyword : {"prefixItems", "anyOf", "allOf"}) {
    Json* list = json::member(node, keyword);
    if (list == nullptr) continue;
    std::size_t i = 0;
    for (Json& child : json::items(*list)) {
      const std::string index = std::to_string(i++);
      f(child, keyword, &index);
    }
  }
}

/// The dotted path of such a child.
inline std::string child_place(const std::string& place, const char* keyword, const std::string* name) {
  return place + "." + keyword + (name == nullptr || name->empty() ? "" : "." + shown(*name));
}

}  // namespace troupe::grammar
