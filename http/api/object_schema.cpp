#include "http/api/object_schema.h"

#include <algorithm>
#include <unordered_set>

namespace troupe::http {
namespace {

constexpr const char* kOfObjects[] = {
    "properties",        "required",      "additionalProperties", "unevaluatedProperties",
    "patternProperties", "propertyNames", "minProperties",        "maxProperties"};
constexpr const char* kOfOthers[] = {
    "items",   "prefixItems", "unevaluatedItems", "minItems",         "maxItems",
    "pattern", "minLength",   "maxLength",        "format",           "minimum",
    "maximum", "multipleOf",  "exclusiveMinimum", "exclusiveMaximum", "uniqueItems"};
constexpr const char* kWhy = ", as arguments are an object";

template <std::size_t N>
bool has_one(const Json& node, const char* const (&keywords)[N]) {
  return std::any_of(std::begin(keywords), std::end(keywords),
                     [&](const char* k) { return node.contains(k); });
}

class Look {
 public:
  explicit Look(const Json& root) : root_(root) {}

  std::optional<SchemaFault> look(const Json& node, const std::string& path) {
    if (!node.is_object()) {
      if (node == false) return {};  // nothing fits it
      return SchemaFault{path, std::string("must have the type \"object\"") + kWhy};
    }
    if (!seen_.insert(&node).second) return {};
    if (const auto type = node.find("type"); type != node.end()) {
      if (*type == "object") return {};
      return SchemaFault{path + ".type",
                         std::string("must be \"object\"") + kWhy + ", got " + excerpt(*type)};
    }
    if (const auto reference = node.find("$ref"); reference != node.end()) return behind(*reference);
    if (const auto value = node.find("const"); value != node.end()) {
      if (value->is_object()) return {};
      return SchemaFault{path + ".const",
                         std::string("must be an object") + kWhy + ", got " + excerpt(*value)};
    }
    if (const auto values = node.find("enum"); values != node.end() && values->is_array()) {
      for (std::size_t i = 0; i < values->size(); ++i) {
        if ((*values)[i].is_object()) continue;
        return SchemaFault{path + ".enum." + std::to_string(i),
                           std::string("must be an object") + kWhy + ", got " + excerpt((*values)[i])};
      }
      return {};
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (const auto options = node.find(keyword); options != node.end())
        return each(*options, path + "." + keyword);
    }
    if (const auto parts = node.find("allOf"); parts != node.end()) return all(*parts, path + ".allOf");
    if (&node == &root_ || (has_one(node, kOfObjects) && !has_one(node, kOfOthers))) return {};
    return SchemaFault{path, std::string("must have the type \"object\"") + kWhy};
  }

 private:
  std::optional<SchemaFault> each(const Json& options, const std::string& path) {
    for (std::size_t i = 0; options.is_array() && i < options.size(); ++i) {
      if (auto fault = look(options[i], path + "." + std::to_string(i))) return fault;
    }
    return {};
  }

  // What fits all parts is an object if one of them allows nothing else.
  std::optional<SchemaFault> all(const Json& parts, const std::string& path) {
    std::optional<SchemaFault> first;
    for (std::size_t i = 0; parts.is_array() && i < parts.size(); ++i) {
      auto fault = look(parts[i], path + "." + std::to_string(i));
      if (!fault) return {};
      if (!first) first = std::move(fault);
    }
    return first;
  }

  std::optional<SchemaFault> behind(const Json& reference) {
    const std::string* given = json::text(reference);
    if (given == nullptr || !given->starts_with('#')) return {};
    const std::string& text = *given;
    const Json* node = &root_;
    std::string path;
    for (std::size_t i = 1, end = 0; i < text.size(); i = end) {
      end = std::min(text.find('/', ++i), text.size());
      const std::string name = text.substr(i, end - i);
      node = json::member(node, name);
      if (node == nullptr) return {};
      path += "." + name;
    }
    return look(*node, path);
  }

  const Json& root_;
  std::unordered_set<const Json*> seen_;
};

}  // namespace

std::optional<SchemaFault> beyond_objects(const Json& schema) { return Look(schema).look(schema, {}); }

}  // namespace troupe::http
