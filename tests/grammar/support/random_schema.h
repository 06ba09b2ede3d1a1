#pragma once
// Random JSON schemas within what can be enforced, references and recursion among them, and a validator of
// our own that knows nothing of grammars.
#include <cmath>
#include <random>
#include <regex>
#include <string>

#include "base/utf8.h"
#include "text/grammar/schema.h"

namespace troupe::testing {

using grammar::Json;

class SchemaMaker {
 public:
  explicit SchemaMaker(std::uint32_t seed) : random_(seed) {}

  Json make() {
    Json root;
    do root = object(3);
    while (!root.contains("properties"));  // one with names of its own
    if (below(3) == 0) {                   // a list or a tree
      root["$defs"]["node"] = {
          {"type", "object"},
          {"properties",
           {{"v", leaf()}, {"next", {{"anyOf", {{{"$ref", "#/$defs/node"}}, {{"type", "null"}}}}}}}},
          {"required", {"v", "next"}},
          {"additionalProperties", false}};
      root["properties"]["tree"] =
          below(2) == 0 ? Json{{"$ref", "#/$defs/node"}}
                        : Json{{"type", "array"}, {"items", {{"$ref", "#/$defs/node"}}}, {"maxItems", 2}};
    }
    if (below(8) == 0) root["properties"]["self"] = {{"anyOf", {{{"type", "null"}}, {{"$ref", "#"}}}}};
    return root;
  }

 private:
  unsigned below(unsigned n) { return static_cast<unsigned>(random_() % n); }

  Json any(int depth) {
    switch (depth > 0 ? below(9) : 8) {
      case 0: return object(depth - 1);
      case 1: return array(depth - 1);
      case 2: return {{"anyOf", {any(depth - 1), any(depth - 1)}}};
      case 3: return tagged(depth - 1);
      case 4: return {{"oneOf", {{{"type", "string"}}, {{"type", "integer"}}, {{"type", "null"}}}}};
      default: return leaf();
    }
  }

  Json object(int depth) {
    static const char* kNames[] = {"a", "b", "name", "id", "value", "名", "x y", "q\"t", "k1", "k2"};
    Json properties = Json::object(), required = Json::array();
    for (unsigned n = 1 + below(4); n > 0; --n) {
      const std::string name = kNames[below(10)];
      properties[name] = any(depth);
    }
    for (const auto& [name, schema] : properties.items()) {
      if (below(2) == 0) required.push_back(name);
    }
    Json out = {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    if (!required.empty()) out["required"] = required;
    switch (below(8)) {
      case 0: out["maxProperties"] = std::max<std::size_t>(required.size(), 1 + below(3)); break;
      case 1: out["minProperties"] = 1; break;
      case 2: out.erase("additionalProperties"); break;
      case 3: return {{"type", "object"}, {"additionalProperties", leaf()}, {"maxProperties", 2}};
      case 4:
        return {{"type", "object"},
                {"patternProperties", {{"^[a-z]{1,3}_id$", leaf()}}},
                {"additionalProperties", false}};
      case 5:
        return {{"type", "object"},
                {"propertyNames", {{"pattern", "^[a-c]{1,2}$"}}},
                {"additionalProperties", leaf()}};
      default: break;
    }
    return out;
  }

  Json array(int depth) {
    Json out = {{"type", "array"}, {"items", any(depth)}};
    if (below(2) == 0) out["minItems"] = below(3);
    if (below(2) == 0) out["maxItems"] = 2 + below(3);
    if (below(4) == 0) {
      out["prefixItems"] = {leaf(), leaf()};
      if (below(2) == 0) out["items"] = false;
      if (out["items"] == Json(false)) out["minItems"] = below(3);
    }
    return out;
  }

  /// Objects told apart by the value of one property.
  Json tagged(int depth) {
    const auto option = [&](const char* kind) {
      return Json{{"type", "object"},
                  {"properties", {{"kind", {{"const", kind}}}, {"v", any(depth)}}},
                  {"required", {"kind"}},
                  {"additionalProperties", false}};
    };
    return {{"oneOf", {option("cat"), option("dog")}}};
  }

  Json leaf() {
    switch (below(16)) {
      case 0: return {{"type", "boolean"}};
      case 1: return {{"type", "null"}};
      case 2: return {{"type", "integer"}};
      case 3: {
        const int low = static_cast<int>(below(400)) - 200;
        return {{"type", "integer"}, {"minimum", low}, {"maximum", low + static_cast<int>(below(500))}};
      }
      case 4: return {{"type", "integer"}, {"exclusiveMinimum", 10.5}};
      case 5: return {{"type", "integer"}, {"multipleOf", 1 + below(12)}};
      case 6: return {{"type", "number"}};
      case 7: {
        const double low = static_cast<double>(below(2000)) / 8 - 100;
        return {{"type", "number"}, {"minimum", low}, {"maximum", low + 0.25 + below(50)}};
      }
      case 8: return {{"type", "number"}, {"exclusiveMaximum", static_cast<double>(below(100)) / 4}};
      case 9: return {{"type", {"string", "null"}}};
      case 10: return {{"enum", {"red", "grün", 3, nullptr, true, {{"a", 1}}, {1, "x"}, "q\"\\"}}};
      case 11: return {{"type", "string"}, {"minLength", below(4)}, {"maxLength", 4 + below(12)}};
      case 12:
        return {{"type", "string"}, {"pattern", below(2) == 0 ? "^[A-Z]{2}-[0-9]+$" : "^(foo|ba[rz])*$"}};
      case 13: {
        static const char* kFormats[] = {"date", "time",  "date-time", "uuid",
                                         "ipv4", "email", "hostname",  "duration"};
        return {{"type", "string"}, {"format", kFormats[below(8)]}};
      }
      case 14: return {{"const", below(2) == 0 ? Json("fixed") : Json(4.5)}};
      default: return {{"type", "string"}};
    }
  }

  std::mt19937 random_;
};

class SchemaValidator {
 public:
  explicit SchemaValidator(const Json& root) : root_(root) {}

  bool valid(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    const auto has = [&](const char* keyword) { return schema.contains(keyword); };
    if (has("$ref")) {
      const auto target = schema["$ref"].get<std::string>();
      if (!valid(root_.at(Json::json_pointer(target.substr(1))), value)) return false;
    }
    if (has("const") && value != schema["const"]) return false;
    if (has("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
      return false;
    if (has("anyOf") && count(schema["anyOf"], value) == 0) return false;
    if (has("oneOf") && count(schema["oneOf"], value) != 1) return false;
    if (has("type") && !typed(schema["type"], value)) return false;
    if (value.is_string()) return string(schema, value.get<std::string>());
    if (value.is_number()) return number(schema, value.get<double>());
    if (value.is_array()) return array(schema, value);
    return !value.is_object() || object(schema, value);
  }

 private:
  std::size_t count(const Json& options, const Json& value) const {
    return static_cast<std::size_t>(
        std::count_if(options.begin(), options.end(), [&](const Json& o) { return valid(o, value); }));
  }

  static bool typed(const Json& type, const Json& value) {
    if (type.is_array()) {
      return std::any_of(type.begin(), type.end(), [&](const Json& one) { return typed(one, value); });
    }
    if (type == "integer") return value.is_number() && value.get<double>() == std::floor(value.get<double>());
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    return type == "array" ? value.is_array() : value.is_object();
  }

  static bool matches(const std::string& text, const std::string& pattern) {
    return std::regex_search(text, std::regex(pattern));
  }

  static bool string(const Json& schema, const std::string& text) {
    const auto length = static_cast<std::int64_t>(utf8::length(text));
    if (length < schema.value("minLength", std::int64_t{0})) return false;
    if (schema.contains("maxLength") && length > schema["maxLength"].get<std::int64_t>()) return false;
    if (schema.contains("pattern") && !matches(text, schema["pattern"].get<std::string>())) return false;
    if (!schema.contains("format")) return true;
    const auto format = schema["format"].get<std::string>();
    const std::string date = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
    const std::string time =
        "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    if (format == "date") return matches(text, "^" + date + "$");
    if (format == "time") return matches(text, "^" + time + "$");
    if (format == "date-time") return matches(text, "^" + date + "T" + time + "$");
    if (format == "uuid") return matches(text, "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$");
    if (format == "ipv4") return matches(text, "^((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])(\\.|$)){4}$");
    if (format == "email") return matches(text, "^[^@\\s]+@[^@\\s]+$");
    if (format == "hostname") return matches(text, "^[A-Za-z0-9.-]{1,253}$");
    return matches(text, "^P[0-9YMWDTHS]+$");
  }

  static bool number(const Json& schema, double value) {
    const auto at = [&](const char* keyword) { return schema[keyword].get<double>(); };
    if (schema.contains("minimum") && value < at("minimum")) return false;
    if (schema.contains("maximum") && value > at("maximum")) return false;
    if (schema.contains("exclusiveMinimum") && value <= at("exclusiveMinimum")) return false;
    if (schema.contains("exclusiveMaximum") && value >= at("exclusiveMaximum")) return false;
    // Beyond 2^53 the parsed value is not the written one.
    return !schema.contains("multipleOf") || std::abs(value) > 9e15 ||
           std::fmod(value, at("multipleOf")) == 0;
  }

  bool array(const Json& schema, const Json& value) const {
    if (value.size() < schema.value("minItems", std::size_t{0})) return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"].get<std::size_t>()) return false;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const bool prefixed = schema.contains("prefixItems") && i < schema["prefixItems"].size();
      if (prefixed && !valid(schema["prefixItems"][i], value[i])) return false;
      if (!prefixed && schema.contains("items") && !valid(schema["items"], value[i])) return false;
    }
    return true;
  }

  bool object(const Json& schema, const Json& value) const {
    if (value.size() < schema.value("minProperties", std::size_t{0})) return false;
    if (schema.contains("maxProperties") && value.size() > schema["maxProperties"].get<std::size_t>())
      return false;
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const Json patterns = schema.value("patternProperties", Json::object());
    for (const auto& [name, member] : value.items()) {
      bool evaluated = false;
      if (schema.contains("propertyNames") && !valid(schema["propertyNames"], name)) return false;
      if (schema.contains("properties") && schema["properties"].contains(name)) {
        evaluated = true;
        if (!valid(schema["properties"][name], member)) return false;
      }
      for (const auto& [pattern, rule] : patterns.items()) {
        if (!matches(name, pattern)) continue;
        evaluated = true;
        if (!valid(rule, member)) return false;
      }
      if (!evaluated && schema.contains("additionalProperties") &&
          !valid(schema["additionalProperties"], member))
        return false;
    }
    return true;
  }

  const Json& root_;
};

}  // namespace troupe::testing
