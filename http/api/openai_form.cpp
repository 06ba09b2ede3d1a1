#include "http/api/openai_form.h"

#include <limits>
#include <utility>

namespace troupe::http {
namespace {

using Kind = AnswerForm::Kind;

struct NamedForm {
  std::string_view name;
  Kind kind;
};
constexpr NamedForm kGuided[] = {
    {"guided_json", Kind::json_schema},        {"guided_regex", Kind::regex},
    {"guided_choice", Kind::choice},           {"guided_grammar", Kind::grammar},
    {"guided_json_object", Kind::json_object}, {"structural_tag", Kind::structural_tag},
};
constexpr NamedForm kStructured[] = {
    {"json", Kind::json_schema},        {"regex", Kind::regex},
    {"choice", Kind::choice},           {"grammar", Kind::grammar},
    {"json_object", Kind::json_object}, {"structural_tag", Kind::structural_tag},
};

class FormReader {
 public:
  FormReader(Fields& fields, const RequestRules& rules) : fields_(fields), rules_(rules) {}

  AnswerForm read() {
    if (Json* format = fields_.find("response_format")) read_response_format(*format);
    for (const NamedForm& field : kGuided) {
      if (Json* value = fields_.find(field.name)) take(field.kind, *value, std::string(field.name));
    }
    if (Json* all = fields_.find("structured_outputs")) read_structured(*all);
    return std::move(form_);
  }

 private:
  void wrong(const std::string& path, const std::string& why, std::string_view reason = "invalid_type") {
    fields_.fail(invalid(path + " " + why, path, std::string(reason)));
  }

  void read_response_format(Json& format) {
    const std::string path = "response_format";
    if (!format.is_object()) return wrong(path, "must be an object, got " + excerpt(format));
    const auto type = format.find("type");
    if (type == format.end() || !type->is_string()) {
      return wrong(path + ".type", "must be text, json_object, json_schema or structural_tag",
                   "invalid_value");
    }
    if (*type == "text") return;
    if (*type == "json_object") return set(Kind::json_object, Json(), path);
    if (*type == "structural_tag") return take(Kind::structural_tag, format, path);
    if (*type != "json_schema") {
      return wrong(path + ".type",
                   "must be text, json_object, json_schema or structural_tag, got " + excerpt(*type),
                   "invalid_value");
    }
    const auto described = format.find("json_schema");
    if (described == format.end())
      return wrong(path + ".json_schema", "is missing", "missing_required_parameter");
    if (!described->is_object())
      return wrong(path + ".json_schema", "must be an object, got " + excerpt(*described));
    if (const auto name = described->find("name"); name != described->end() && !name->is_string()) {
      return wrong(path + ".json_schema.name", "must be a string, got " + excerpt(*name));
    }
    if (const auto strict = described->find("strict");
        strict != described->end() && !strict->is_boolean() && !strict->is_null()) {
      return wrong(path + ".json_schema.strict", "must be true or false, got " + excerpt(*strict));
    }
    const auto schema = described->find("schema");
    if (schema == described->end() || schema->is_null()) {
      return wrong(path + ".json_schema.schema", "is missing", "missing_required_parameter");
    }
    take(Kind::json_schema, *schema, path + ".json_schema.schema");
  }

  void read_structured(Json& all) {
    const std::string path = "structured_outputs";
    if (!all.is_object()) return wrong(path, "must be an object, got " + excerpt(all));
    for (auto& [key, value] : *json::object(all)) {
      if (value.is_null()) continue;
      bool known = false;
      for (const NamedForm& field : kStructured) {
        if (key != field.name) continue;
        known = true;
        take(field.kind, value, path + "." + key);
      }
      if (!known) {
        wrong(path + "." + cut(key),
              "is not offered: json, regex, choice, grammar, json_object and structural_tag are",
              "unsupported_parameter");
      }
    }
  }

  /// A value of the field `path`, checked for its type.
  void take(Kind kind, Json& value, const std::string& path) {
    switch (kind) {
      case Kind::json_object:
        if (!value.is_boolean())
          return wrong(path, "must be true or false, got " + excerpt(value), "invalid_value");
        if (json::is_true(&value)) set(kind, Json(), path);
        return;
      case Kind::regex:
      case Kind::grammar:
        if (!value.is_string()) return wrong(path, "must be a string, got " + excerpt(value));
        return set(kind, std::move(value), path);
      case Kind::choice:
        if (!value.is_array()) return wrong(path, "must be a list of strings, got " + excerpt(value));
        for (std::size_t i = 0; i < value.size(); ++i) {
          const Json& item = json::items(value)[i];
          if (item.is_string()) continue;
          return wrong(path + "." + std::to_string(i), "must be a string, got " + excerpt(item));
        }
        return set(kind, std::move(value), path);
      default: break;
    }
    if (const std::string* text = json::text(value)) {
      // Clients of vLLM and FastDeploy send the JSON as text.
      auto parsed = parse_json(*text, {rules_.limits.max_json_depth, rules_.limits.max_json_elements});
      if (!parsed.ok())
        return wrong(path, "must be an object or JSON text: " + parsed.status().message, "invalid_json");
      value = *std::move(parsed);
    }
    const bool schema = kind == Kind::json_schema && value.is_boolean();
    if (!value.is_object() && !schema) return wrong(path, "must be an object, got " + excerpt(value));
    set(kind, std::move(value), path);
  }

  void set(Kind kind, Json value, const std::string& path) {
    if (form_.kind != Kind::free)
      return wrong(path, "cannot be given together with " + form_.param, "invalid_value");
    if (!rules_.model.offers_forms) {
      return fields_.fail(
          {Code::unsupported,
           path + " needs a grammar, and this server was started with --guided-decoding-backend off", path,
           "unsupported_parameter"});
    }
    form_ = {kind, std::move(value), path};
  }

  Fields& fields_;
  const RequestRules& rules_;
  AnswerForm form_;
};

}  // namespace

AnswerForm read_answer_form(Fields& fields, const RequestRules& rules) {
  return FormReader(fields, rules).read();
}

void check_beside_form(Fields& fields, const AnswerForm& form) {
  if (form.kind == Kind::free) return;
  if (const auto least = fields.integer("min_tokens", 0, std::numeric_limits<std::int64_t>::max());
      least.value_or(0) > 1) {
    fields.fail("min_tokens",
                "cannot be above 1 together with " + form.param +
                    ", which says when an answer is complete, got " + std::to_string(*least),
                "invalid_value");
  }
}

}  // namespace troupe::http
