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
  const auto it = node.find(keyword);
  if (it == node.end()) return std::optional<double>();
  if (!it->is_number() || !std::isfinite(it->get<double>())) {
    return malformed(place + "." + keyword, "must be a number");
  }
  return std::optional<double>(it->get<double>());
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
  if (bounds.low) node["minimum"] = static_cast<std::int64_t>(*bounds.low);
  if (bounds.high) node["maximum"] = static_cast<std::int64_t>(*bounds.high);
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
  const auto it = node.find("multipleOf");
  if (it == node.end()) return {};
  const std::string here = place + ".multipleOf";
  if (!it->is_number() || it->get<double>() <= 0) return malformed(here, "must be a number above 0");
  if (number) return unsupported(here, "can be enforced for integers only");
  const double value = it->get<double>();
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
  const auto required = node.find("required");
  if (required == node.end()) return {};
  const std::string here = place + ".required";
  const auto too_many = [&] {
    return invalid(here + " has more than " + std::to_string(limits.properties) + " names", here,
                   "schema_too_large");
  };
  if (!required->is_array()) return malformed(here, "must be a list of names");
  std::unordered_set<std::string> seen;
  Json names = Json::array();
  for (const Json& name : *required) {
    if (!name.is_string()) return malformed(here, "must be a list of names");
    if (!seen.insert(name.get<std::string>()).second) continue;
    if (seen.size() > static_cast<std::size_t>(limits.properties)) return too_many();
    names.push_back(name);
  }
  *required = names;
  if (const auto properties = node.find("properties"); properties != node.end()) {
    for (const auto& [name, child] : properties->get_ref<const Json::object_t&>()) seen.erase(name);
  }
  if (names.empty()) node.erase("required");
  if (seen.empty()) return {};

  const auto others = node.find("additionalProperties");
  if (others != node.end() && *others == Json(false)) {
    const auto missing = std::find_if(
        names.begin(), names.end(), [&](const Json& name) { return seen.contains(name.get<std::string>()); });
    return unsatisfiable(here, "names \"" + shown(missing->get<std::string>()) +
                                   "\", which additionalProperties does not allow");
  }
  if (node.contains("patternProperties") || node.contains("propertyNames")) {
    return unsupported(here, "cannot be enforced beside patternProperties or propertyNames");
  }
  const Json value = others != node.end() && others->is_object() ? *others : Json::object();
  if (value.dump().size() * seen.size() > kMaxDeclaredBytes) {
    return invalid(
        here + " names too many properties for the schema that additionalProperties gives them; declare them",
        here, "schema_too_large");
  }
  auto& properties = node["properties"];
  if (properties.is_null()) properties = Json::object();
  // Assigning to properties[name] would look for each name among all those before it.
  auto& members = properties.get_ref<Json::object_t&>();
  for (const Json& name : names) {
    if (seen.contains(name.get<std::string>())) members.emplace_back(name.get<std::string>(), value);
  }
  return {};
}

/// patternProperties and propertyNames: enforced where they alone say which names there are.
Status check_name_rules(Json& node, const std::string& place) {
  const bool patterns = node.contains("patternProperties"), names = node.contains("propertyNames");
  if (!patterns && !names) return {};
  const std::string here = place + (patterns ? ".patternProperties" : ".propertyNames");
  if (node.contains("properties")) return unsupported(here, "cannot be enforced beside properties");
  if (patterns && names) return unsupported(here, "cannot be enforced beside propertyNames");
  if (names) {
    Json& rule = node["propertyNames"];
    if (!rule.is_object()) return unsupported(here, "must be a schema of strings");
    for (const char* keyword : {"$ref", "anyOf", "oneOf", "allOf"}) {
      if (rule.contains(keyword)) return unsupported(here + "." + keyword, "cannot be enforced for names");
    }
    if (!rule.contains("enum") && !rule.contains("const")) {
      if (rule.value("type", Json("string")) != "string")
        return unsatisfiable(here + ".type", "must be string");
    }
    rule["type"] = "string";
    if (const auto others = node.find("additionalProperties");
        others != node.end() && *others == Json(false)) {
      return unsupported(here, "cannot be enforced beside additionalProperties: false");
    }
    return {};
  }
  Json& rules = node["patternProperties"];
  if (!rules.is_object() || rules.size() != 1) return unsupported(here, "must be one pattern to be enforced");
  Json only = Json::object();
  only[plain_pattern(rules.begin().key())] = std::move(rules.begin().value());
  rules = std::move(only);
  // The names that fit the pattern are enough: others would be further choices.
  node["additionalProperties"] = false;
  return {};
}

}  // namespace

Result<std::optional<std::int64_t>> count_keyword(const Json& node, const char* keyword,
                                                  const std::string& place) {
  const auto it = node.find(keyword);
  if (it == node.end()) return std::optional<std::int64_t>();
  const bool whole = it->is_number_integer() ||
                     (it->is_number_float() && it->get<double>() == std::floor(it->get<double>()));
  if (!whole || it->get<double>() < 0 || it->get<double>() > std::numeric_limits<std::int32_t>::max()) {
    return malformed(place + "." + keyword, "must be an integer from 0 to 2147483647");
  }
  return std::optional<std::int64_t>(it->get<std::int64_t>());
}

Status check_string(Json& node, const std::string& place, const SchemaLimits& limits) {
  const auto least = count_keyword(node, "minLength", place), most = count_keyword(node, "maxLength", place);
  if (!least.ok()) return least.status();
  if (!most.ok()) return most.status();
  if (*most && least->value_or(0) > **most) return unsatisfiable(place + ".minLength", "is above maxLength");
  if (const auto it = node.find("pattern"); it != node.end()) {
    if (!it->is_string()) return malformed(place + ".pattern", "must be a string");
    if (it->get_ref<const std::string&>().size() > limits.pattern_bytes) {
      return invalid(place + ".pattern is longer than " + std::to_string(limits.pattern_bytes) + " bytes",
                     place + ".pattern", "schema_too_large");
    }
    if (*most || least->value_or(0) > 0)
      return unsupported(place + ".pattern", "cannot be enforced beside a length");
    *it = plain_pattern(it->get<std::string>());
  }
  if (const auto it = node.find("format"); it != node.end()) {
    if (!it->is_string()) return malformed(place + ".format", "must be a string");
    const auto name = it->get<std::string>();
    if (is_describing_format(name)) {
      node.erase("format");
    } else {
      if (*most || least->value_or(0) > 0 || node.contains("pattern")) {
        return unsupported(place + ".format", "cannot be enforced beside pattern or a length");
      }
      const std::optional<std::string> pattern = pattern_of_format(name);
      if (!pattern) {
        return unsupported(place + ".format",
                           "is \"" + name.substr(0, 32) + "\"; enforced are " + known_formats());
      }
      node.erase("format");
      node["pattern"] = *pattern;
      return {};
    }
  }
  if (*most || least->value_or(0) > 0) {
    // The compiler's own lengths let control characters through, which JSON does not allow in strings.
    node["pattern"] = pattern_of_length(least->value_or(0), *most);
    node.erase("minLength");
    node.erase("maxLength");
  }
  return {};
}

Status check_number(Json& node, const std::string& place, bool integer, bool number) {
  Bounds bounds;
  Status status = number ? check_real_bounds(node, place, bounds) : round_bounds(node, place, bounds);
  if (!status.ok()) return status;
  const bool open = number && (node.contains("exclusiveMinimum") || node.contains("exclusiveMaximum"));
  if (bounds.low && bounds.high && (*bounds.low > *bounds.high || (open && *bounds.low == *bounds.high))) {
    return unsatisfiable(place, "has bounds that no number fits");
  }
  if (integer && number && (bounds.low || bounds.high)) {
    // The compiler reads the bounds once for each type, and integers want whole ones.
    Json& types = node["type"];
    if (types.is_array()) types.erase(std::find(types.begin(), types.end(), Json("integer")));
  }
  return check_multiple(node, place, number, bounds);
}

Status check_array(Json& node, const std::string& place) {
  if (const auto it = node.find("uniqueItems"); it != node.end()) {
    if (!it->is_boolean()) return malformed(place + ".uniqueItems", "must be true or false");
    if (it->get<bool>()) return unsupported(place + ".uniqueItems", "cannot be enforced");
    node.erase("uniqueItems");
  }
  const auto least = count_keyword(node, "minItems", place), most = count_keyword(node, "maxItems", place);
  if (!least.ok()) return least.status();
  if (!most.ok()) return most.status();
  if (*most && least->value_or(0) > **most) return unsatisfiable(place + ".minItems", "is above maxItems");

  if (const auto it = node.find("unevaluatedItems"); it != node.end()) {
    Json rest = std::move(*it);
    node.erase("unevaluatedItems");
    if (!node.contains("items")) node["items"] = std::move(rest);
  }
  std::int64_t prefix = 0;
  if (const auto it = node.find("prefixItems"); it != node.end()) {
    if (!it->is_array()) return malformed(place + ".prefixItems", "must be a list of schemas");
    if (*most && **most < static_cast<std::int64_t>(it->size())) {
      it->erase(it->begin() + static_cast<std::ptrdiff_t>(**most), it->end());
    }
    prefix = static_cast<std::int64_t>(it->size());
    if (prefix == 0) node.erase("prefixItems");
  }
  if (!node.contains("items")) {
    node["items"] = prefix == 0 || least->value_or(0) > prefix ? Json::object() : Json(false);
  }
  Json& items = node["items"];
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
  if (const auto it = node.find("unevaluatedProperties"); it != node.end()) {
    Json rest = std::move(*it);
    node.erase("unevaluatedProperties");
    if (!node.contains("additionalProperties")) node["additionalProperties"] = std::move(rest);
  }
  if (const auto it = node.find("properties"); it != node.end()) {
    if (!it->is_object()) return malformed(place + ".properties", "must be an object of schemas");
    if (it->empty()) {
      // Like no properties at all, except that nothing else is meant.
      node.erase("properties");
    }
  }
  if (Status status = check_name_rules(node, place); !status.ok()) return status;
  if (Status status = declare_required(node, place, limits); !status.ok()) return status;
  const bool declared = node.contains("properties");
  if (!node.contains("additionalProperties")) node["additionalProperties"] = !declared;
  const bool open = node["additionalProperties"] != Json(false) || node.contains("patternProperties");

  const auto least = count_keyword(node, "minProperties", place),
             most = count_keyword(node, "maxProperties", place);
  if (!least.ok()) return least.status();
  if (!most.ok()) return most.status();
  const auto required = static_cast<std::int64_t>(node.contains("required") ? node["required"].size() : 0);
  const auto names = static_cast<std::int64_t>(declared ? node["properties"].size() : 0);
  if (*most && (required > **most || least->value_or(0) > **most)) {
    return unsatisfiable(place + ".maxProperties", "is less than what is required");
  }
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
