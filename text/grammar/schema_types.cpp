// The keywords of each type: what the compiler enforces stays, what it would ignore is refused.
#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>

#include "text/grammar/formats.h"
#include "text/grammar/schema_walk.h"

namespace troupe::grammar {
namespace {

constexpr std::int64_t kMaxMultiple = 1024;  // of multipleOf; the compiler's
constexpr std::int64_t kMaxMultipleRange =
    10000;  // numbers between the bounds beside multipleOf; the compiler's
constexpr double kMaxExact = 9007199254740992.0;  // 2^53

struct Bounds {
  std::optional<double> low, high;
};

Result<std::optional<double>> bound(const Json& node, const char* keyword, const std::string& place) {
  const Json* bound = json::member(node, keyword);
  if (bound == nullptr) return std::optional<double>();
  const auto value = json::number(*bound);
  if (!value || !std::isfinite(*value)) return malformed(place + "." + keyword, "must be a number");
  return value;
}

/// The bounds of integers, inclusive, as the two keywords minimum and maximum.
Status round_bounds(Json& node, const std::string& place, Bounds& bounds) {
  for (const auto& [keyword, low, open] : {std::tuple{"minimum", true, false},
                                           {"exclusiveMinimum", true, true},
                                           {"maximum", false, false},
                                           {"exclusiveMaximum", false, true}}) {
    const auto value = bound(node, keyword, place);
    if (!value.ok()) return value.status();
    if (!*value) continue;
    if (std::abs(**value) > kMaxExact)
      return unsupported(place + "." + keyword, "is too large: allowed is 2^53");
    double rounded = low ? std::ceil(**value) : std::floor(**value);
    if (open && rounded == **value) rounded += low ? 1 : -1;
    std::optional<double>& side = low ? bounds.low : bounds.high;
    side = !side ? rounded : low ? std::max(*side, rounded) : std::min(*side, rounded);
    node.erase(keyword);
  }
  if (bounds.low) json::put(node, "minimum", static_cast<std::int64_t>(*bounds.low));
  if (bounds.high) json::put(node, "maximum", static_cast<std::int64_t>(*bounds.high));
  return {};
}

/// Bounds of numbers that have a fraction. The compiler writes six digits after the point.
Status check_real_bounds(const Json& node, const std::string& place, Bounds& bounds) {
  for (const auto& [keyword, low] : {std::pair{"minimum", true},
                                     {"exclusiveMinimum", true},
                                     {"maximum", false},
                                     {"exclusiveMaximum", false}}) {
    const auto value = bound(node, keyword, place);
    if (!value.ok()) return value.status();
    if (!*value) continue;
    if (std::abs(**value) > 1e9) return unsupported(place + "." + keyword, "is too large: allowed is 1e9");
    const double millionths = **value * 1e6;
    if (std::abs(millionths - std::round(millionths)) > 1e-3) {
      return unsupported(place + "." + keyword, "must not have more than six digits after the point");
    }
    std::optional<double>& side = low ? bounds.low : bounds.high;
    side = !side ? **value : low ? std::max(*side, **value) : std::min(*side, **value);
  }
  return {};
}

Status check_multiple(const Json& node, const std::string& place, bool number, const Bounds& bounds) {
  const Json* given = json::member(node, "multipleOf");
  if (given == nullptr) return {};
  const std::string here = place + ".multipleOf";
  const double value = json::number(*given).value_or(0);
  if (!(value > 0)) return malformed(here, "must be a number above 0");
  if (number) return unsupported(here, "can be enforced for integers only");
  if (value != std::floor(value) || value > static_cast<double>(kMaxMultiple)) {
    return unsupported(here, "must be an integer of at most " + std::to_string(kMaxMultiple));
  }
  if (!bounds.low && !bounds.high) return {};
  if (!bounds.low || !bounds.high || *bounds.high - *bounds.low >= static_cast<double>(kMaxMultipleRange)) {
    return unsupported(here, "can be enforced without bounds, or with two that are less than " +
                                 std::to_string(kMaxMultipleRange) + " apart");
  }
  if (std::floor(*bounds.high / value) * value < *bounds.low)
    return unsatisfiable(here, "has no multiple in the bounds");
  return {};
}

/// Bytes of an additionalProperties schema in all the properties that declare_required() gives it to.
constexpr std::size_t kMaxDeclaredBytes = std::size_t{4} << 20;

/// Adds the required names that are not declared: their values are what the object allows for other names.
Status declare_required(Json& node, const std::string& place, const SchemaLimits& limits) {
  Json* required = json::member(node, "required");
  if (required == nullptr) return {};
  const std::string here = place + ".required";
  if (!required->is_array()) return malformed(here, "must be a list of names");
  std::unordered_set<std::string> missing;
  std::vector<std::string> names;
  for (const Json& listed : *required) {
    const std::string* name = json::text(listed);
    if (name == nullptr) return malformed(here, "must be a list of names");
    if (!missing.insert(*name).second) continue;
    names.push_back(*name);
  }
  *required = names;
  if (const Json* properties = json::member(node, "properties")) {
    for (const auto& [name, child] : json::members(*properties)) missing.erase(name);
  }
  if (names.empty()) node.erase("required");
  if (missing.empty()) return {};
  if (missing.size() > static_cast<std::size_t>(limits.properties)) {
    return invalid(here + " has more than " + std::to_string(limits.properties) +
                       " names that properties does not declare",
                   here, "schema_too_large");
  }

  const Json* others = json::member(node, "additionalProperties");
  if (others != nullptr && *others == Json(false)) {
    const auto name = std::find_if(names.begin(), names.end(),
                                   [&](const std::string& one) { return missing.contains(one); });
    return unsatisfiable(here, "names \"" + shown(*name) + "\", which additionalProperties does not allow");
  }
  if (json::has(node, "patternProperties") || json::has(node, "propertyNames")) {
    return unsupported(here, "cannot be enforced beside patternProperties or propertyNames");
  }
  const Json value = others != nullptr && others->is_object() ? *others : Json::object();
  if (json::to_text(value).size() * missing.size() > kMaxDeclaredBytes) {
    return invalid(
        here + " names too many properties for the schema that additionalProperties gives them; declare them",
        here, "schema_too_large");
  }
  if (!json::has(node, "properties")) json::put(node, "properties", Json::object());
  // put() would look for each name among all those before it.
  json::Members& members = *json::object(*json::member(node, "properties"));
  for (const std::string& name : names) {
    if (missing.contains(name)) members.emplace_back(name, value);
  }
  return {};
}

/// patternProperties and propertyNames: enforced where they alone say which names there are.
Status check_name_rules(Json& node, const std::string& place) {
  const bool patterns = json::has(node, "patternProperties"), names = json::has(node, "propertyNames");
  if (!patterns && !names) return {};
  const std::string here = place + (patterns ? ".patternProperties" : ".propertyNames");
  if (json::has(node, "properties")) return unsupported(here, "cannot be enforced beside properties");
  if (patterns && names) return unsupported(here, "cannot be enforced beside propertyNames");
  if (names) {
    Json& rule = *json::member(node, "propertyNames");
    if (!rule.is_object()) return unsupported(here, "must be a schema of strings");
    for (const char* keyword : {"$ref", "anyOf", "oneOf", "allOf"}) {
      if (json::has(rule, keyword)) return unsupported(here + "." + keyword, "cannot be enforced for names");
    }
    if (!json::has(rule, "enum") && !json::has(rule, "const")) {
      const Json* type = json::member(rule, "type");
      if (type != nullptr && !json::is(type, "string"))
        return unsatisfiable(here + ".type", "must be string");
    }
    json::put(rule, "type", "string");
    if (const Json* others = json::member(node, "additionalProperties");
        others != nullptr && *others == Json(false)) {
      return unsupported(here, "cannot be enforced beside additionalProperties: false");
    }
    return {};
  }
  Json& rules = *json::member(node, "patternProperties");
  const json::Members& all = json::members(rules);
  if (all.size() != 1) return unsupported(here, "must be one pattern to be enforced");
  Json plain = Json::object();
  json::put(plain, plain_pattern(all.front().first), std::move(json::object(rules)->front().second));
  rules = std::move(plain);
  // The names that fit the pattern are enough: others would be further choices.
  json::put(node, "additionalProperties", false);
  return {};
}

}  // namespace

Result<std::optional<std::int64_t>> count_keyword(const Json& node, const char* keyword,
                                                  const std::string& place) {
  const Json* given = json::member(node, keyword);
  if (given == nullptr) return std::optional<std::int64_t>();
  const auto count = json::integer(*given);
  if (!count || *count < 0 || *count > std::numeric_limits<std::int32_t>::max()) {
    return malformed(place + "." + keyword, "must be an integer from 0 to 2147483647");
  }
  return count;
}

Status check_string(Json& node, const std::string& place, const SchemaLimits& limits) {
  const auto least = count_keyword(node, "minLength", place), most = count_keyword(node, "maxLength", place);
  if (!least.ok()) return least.status();
  if (!most.ok()) return most.status();
  if (*most && least->value_or(0) > **most) return unsatisfiable(place + ".minLength", "is above maxLength");
  if (Json* given = json::member(node, "pattern")) {
    std::string* pattern = json::text(*given);
    if (pattern == nullptr) return malformed(place + ".pattern", "must be a string");
    if (pattern->size() > limits.pattern_bytes) {
      return invalid(place + ".pattern is longer than " + std::to_string(limits.pattern_bytes) + " bytes",
                     place + ".pattern", "schema_too_large");
    }
    if (*most || least->value_or(0) > 0)
      return unsupported(place + ".pattern", "cannot be enforced beside a length");
    *pattern = plain_pattern(*pattern);
  }
  if (const Json* given = json::member(node, "format")) {
    const std::string* text = json::text(given);
    if (text == nullptr) return malformed(place + ".format", "must be a string");
    const std::string name = *text;
    if (is_describing_format(name)) {
      node.erase("format");
    } else {
      if (*most || least->value_or(0) > 0 || json::has(node, "pattern")) {
        return unsupported(place + ".format", "cannot be enforced beside pattern or a length");
      }
      const std::optional<std::string> pattern = pattern_of_format(name);
      if (!pattern) {
        return unsupported(place + ".format",
                           "is \"" + name.substr(0, 32) + "\"; enforced are " + known_formats());
      }
      node.erase("format");
      json::put(node, "pattern", *pattern);
      return {};
    }
  }
  if (*most || least->value_or(0) > 0) {
    // The compiler's own lengths let control characters through, which JSON does not allow in strings.
    json::put(node, "pattern", pattern_of_length(least->value_or(0), *most));
    node.erase("minLength");
    node.erase("maxLength");
  }
  return {};
}

Status check_number(Json& node, const std::string& place, bool integer, bool number) {
  Bounds bounds;
  Status status = number ? check_real_bounds(node, place, bounds) : round_bounds(node, place, bounds);
  if (!status.ok()) return status;
  const bool open = number && (json::has(node, "exclusiveMinimum") || json::has(node, "exclusiveMaximum"));
  if (bounds.low && bounds.high && (*bounds.low > *bounds.high || (open && *bounds.low == *bounds.high))) {
    return unsatisfiable(place, "has bounds that no number fits");
  }
  if (integer && number && (bounds.low || bounds.high)) {
    // The compiler reads the bounds once for each type, and integers want whole ones.
    Json& types = *json::member(node, "type");
    if (types.is_array()) types.erase(std::find(types.begin(), types.end(), Json("integer")));
  }
  return check_multiple(node, place, number, bounds);
}

Status check_array(Json& node, const std::string& place) {
  if (const Json* unique = json::member(node, "uniqueItems")) {
    const auto wanted = json::boolean(unique);
    if (!wanted) return malformed(place + ".uniqueItems", "must be true or false");
    if (*wanted) return unsupported(place + ".uniqueItems", "cannot be enforced");
    node.erase("uniqueItems");
  }
  const auto least = count_keyword(node, "minItems", place), most = count_keyword(node, "maxItems", place);
  if (!least.ok()) return least.status();
  if (!most.ok()) return most.status();
  if (*most && least->value_or(0) > **most) return unsatisfiable(place + ".minItems", "is above maxItems");

  if (Json* rest = json::member(node, "unevaluatedItems")) {
    Json schema = std::move(*rest);
    node.erase("unevaluatedItems");
    if (!json::has(node, "items")) json::put(node, "items", std::move(schema));
  }
  std::int64_t prefix = 0;
  if (Json* schemas = json::member(node, "prefixItems")) {
    if (!schemas->is_array()) return malformed(place + ".prefixItems", "must be a list of schemas");
    if (*most && **most < static_cast<std::int64_t>(schemas->size())) {
      schemas->erase(schemas->begin() + static_cast<std::ptrdiff_t>(**most), schemas->end());
    }
    prefix = static_cast<std::int64_t>(schemas->size());
    if (prefix == 0) node.erase("prefixItems");
  }
  if (!json::has(node, "items")) {
    json::put(node, "items", prefix == 0 || least->value_or(0) > prefix ? Json::object() : Json(false));
  }
  Json& items = *json::member(node, "items");
  if (items.is_array())
    return unsupported(place + ".items", "must be one schema; a list of them is prefixItems");
  if (*most && **most == prefix) items = false;
  if (items == Json(false) && least->value_or(0) > prefix) {
    return unsatisfiable(place + ".minItems", "is above the number of items that are allowed");
  }
  if (items == Json(true)) items = Json::object();
  return {};
}

Status check_object(Json& node, const std::string& place, const SchemaLimits& limits) {
  if (Json* rest = json::member(node, "unevaluatedProperties")) {
    Json schema = std::move(*rest);
    node.erase("unevaluatedProperties");
    if (!json::has(node, "additionalProperties")) json::put(node, "additionalProperties", std::move(schema));
  }
  if (const Json* properties = json::member(node, "properties")) {
    if (!properties->is_object()) return malformed(place + ".properties", "must be an object of schemas");
    if (properties->empty()) {
      // Like no properties at all, except that nothing else is meant.
      node.erase("properties");
    }
  }
  if (Status status = check_name_rules(node, place); !status.ok()) return status;
  if (Status status = declare_required(node, place, limits); !status.ok()) return status;
  const Json* properties = json::member(node, "properties");
  const std::size_t declared = properties != nullptr ? properties->size() : 0;
  const Json* others = json::member(node, "additionalProperties");
  if (others == nullptr) others = &json::put(node, "additionalProperties", declared == 0);
  const bool open = *others != Json(false) || json::has(node, "patternProperties");

  const auto least = count_keyword(node, "minProperties", place),
             most = count_keyword(node, "maxProperties", place);
  if (!least.ok()) return least.status();
  if (!most.ok()) return most.status();
  const Json* needed = json::member(node, "required");
  const auto required = static_cast<std::int64_t>(needed != nullptr ? needed->size() : 0);
  const auto names = static_cast<std::int64_t>(declared);
  if (*most && (required > **most || least->value_or(0) > **most)) {
    return unsatisfiable(place + ".maxProperties", "is less than what is required");
  }
  if (*most && !open && names <= **most) node.erase("maxProperties");  // it forbids nothing
  if (!open && least->value_or(0) > names) {
    return unsatisfiable(place + ".minProperties", "is above the number of properties that are allowed");
  }
  if (least->value_or(0) <= required) {
    node.erase("minProperties");
  } else if (open && **least > 1) {
    // A name may come twice, which counts once.
    return unsupported(place + ".minProperties",
                       "above 1 can be enforced only with additionalProperties: false");
  }
  return {};
}

}  // namespace troupe::grammar
