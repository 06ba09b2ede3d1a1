#include "http/api/openapi.h"

#include <cmath>
#include <initializer_list>

#include "http/api/answer_schemas.h"
#include "http/api/json_body.h"
#include "http/api/request_fields.h"
#include "http/api/request_schemas.h"
#include "http/server/routes.h"

namespace troupe::http {
namespace {

std::string_view json_type(FieldType type) {
  switch (type) {
    case FieldType::boolean: return "boolean";
    case FieldType::integer: return "integer";
    case FieldType::number: return "number";
    case FieldType::string: return "string";
    case FieldType::list: return "array";
    case FieldType::object: return "object";
    case FieldType::any: break;
  }
  return {};
}

/// A whole number is written as one.
Json bound(double value) {
  const auto whole = static_cast<std::int64_t>(value);
  return static_cast<double>(whole) == value ? Json(whole) : Json(value);
}

Json reference(std::string_view name) { return {{"$ref", "#/components/schemas/" + std::string(name)}}; }

/// Fields with an inside: the component that describes it.
struct FieldComponent {
  std::string_view name;
  ApiSet apis;
  const char* component;
};

constexpr std::uint16_t kAllApis = 0xFFFF;
constexpr FieldComponent kFieldComponents[] = {
    {"bad_words", kAllApis, "Strings"},
    {"bad_words_token_ids", kAllApis, "TokenIds"},
    {"guided_choice", kAllApis, "Strings"},
    {"input", kEmbeddingsApi, "EmbeddingInput"},
    {"input", kResponsesApi, "ResponseInput"},
    {"logit_bias", kAllApis, "LogitBias"},
    {"messages", kChatApi | kTokenizeApi | kEmbeddingsApi, "ChatMessages"},
    {"messages", kMessagesApi | kCountTokensApi, "MessageTurns"},
    {"metadata", kResponsesApi, "Metadata"},
    {"prompt", kCompletionsApi, "Prompts"},
    {"prompt", kTokenizeApi, "PromptText"},
    {"prompt_token_ids", kAllApis, "TokenIds"},
    {"reasoning_effort", kChatApi, "Effort"},
    {"response_format", kChatApi | kCompletionsApi, "ResponseFormat"},
    {"stop", kAllApis, "Stop"},
    {"stop_sequences", kAllApis, "Strings"},
    {"stop_token_ids", kAllApis, "TokenIds"},
    {"stream_options", kChatApi | kCompletionsApi, "StreamOptions"},
    {"system", kAllApis, "SystemText"},
    {"tokens", kDetokenizeApi, "TokenIds"},
    {"tool_choice", kChatApi | kTokenizeApi, "ChatToolChoice"},
    {"tools", kChatApi | kTokenizeApi, "ChatTools"},
    {"tools", kResponsesApi, "ResponseTools"},
    {"tools", kMessagesApi | kCountTokensApi, "MessageTools"},
};

const char* component_of(const RequestField& field, ApiSet api) {
  for (const FieldComponent& row : kFieldComponents) {
    if (row.name == field.name && (row.apis & api) != 0) return row.component;
  }
  return nullptr;
}

/// null means absent, in every field.
Json field_schema(const RequestField& field, ApiSet api) {
  Json schema = Json::object();
  if (const char* component = component_of(field, api)) {
    schema["anyOf"] = Json::array({reference(component), {{"type", "null"}}});
  } else if (field.about.starts_with("not offered")) {
    schema["type"] = "null";
  } else if (const std::string_view type = json_type(field.type); !type.empty())
    schema["type"] = {type, "null"};
  if (std::isfinite(field.bounds.low)) schema["minimum"] = bound(field.bounds.low);
  if (std::isfinite(field.bounds.high)) schema["maximum"] = bound(field.bounds.high);
  schema["description"] = field.about.empty() ? "accepted without effect" : field.about;
  return schema;
}

Json body_schema(const Route& route, const config::LimitOptions& limits) {
  Json properties = Json::object();
  for (const RequestField& field : request_fields()) {
    if ((field.apis & bit(route.api)) != 0)
      properties[std::string(field.name)] = field_schema(field, bit(route.api));
  }
  if (properties.contains("n") && !properties["n"].contains("maximum"))
    properties["n"]["maximum"] = limits.max_n;
  if (properties.contains("best_of")) properties["best_of"]["maximum"] = limits.max_best_of;
  Json required = Json::array();
  for (const char* name : route.required) {
    if (name == nullptr) continue;
    required.push_back(name);
    Json& field = properties[name];
    if (const auto type = field.find("type"); type != field.end() && type->is_array())
      *type = Json((*type)[0]);
    if (const auto any = field.find("anyOf"); any != field.end()) any->erase(1);  // null
  }
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
}

Json json_content(Json schema) { return {{"application/json", {{"schema", std::move(schema)}}}}; }

/// The answers of a route: 200, and an error for any other status. `answer`, the schema of 200, may be null.
Json answers_of(std::string_view about, const char* answer, const char* error) {
  Json good = {{"description", about}};
  if (answer != nullptr) good["content"] = json_content(reference(answer));
  Json bad = {{"description", "an error"}, {"content", json_content(reference(error))}};
  return {{"200", std::move(good)}, {"default", std::move(bad)}};
}

/// No key, where none is configured, or one of the schemes.
Json security(std::initializer_list<const char*> schemes) {
  Json either = Json::array();
  either.push_back(Json::object());
  for (const char* name : schemes) either.push_back({{name, Json::array()}});
  return either;
}

Json key_schemes() {
  Json schemes = Json::object();
  const auto add = [&](const std::string& prefix, std::string_view about) {
    schemes[prefix + "bearer"] = {{"type", "http"}, {"scheme", "bearer"}, {"description", about}};
    schemes[prefix + "x-api-key"] = {
        {"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}, {"description", about}};
  };
  add("", "A key of --api-key or --admin-api-key");
  add("admin-", "A key of --admin-api-key");
  return schemes;
}

Json body_route(const Route& route, const config::LimitOptions& limits) {
  Json answers = answers_of("the answer", route.answer, is_anthropic(route.api) ? "MessagesError" : "Error");
  if (route.event != nullptr) {
    // OpenAPI 3.1 has no schema for a stream's events.
    answers["200"]["content"]["text/event-stream"] = {{"schema", {{"type", "string"}}},
                                                      {"x-event-schema", reference(route.event)}};
  }
  return {{"summary", route.about},
          {"requestBody", {{"required", true}, {"content", json_content(body_schema(route, limits))}}},
          {"responses", std::move(answers)}};
}

Json bodiless_route(const Route& route) {
  Json about = {{"summary", route.about}};
  if (route.answer != nullptr) {
    about["responses"] = answers_of(route.about, route.answer, "Error");
  } else {
    about["responses"] = {{"default", {{"description", route.about}}}};
  }
  if (const std::size_t brace = route.path.find('{'); brace != route.path.npos) {
    const std::string_view name = route.path.substr(brace + 1, route.path.find('}') - brace - 1);
    Json parameter = {{"name", name}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}};
    about["parameters"] = Json::array({std::move(parameter)});
  }
  if (route.access == Access::none) about["security"] = Json::array();
  if (route.access == Access::admin) about["security"] = security({"admin-bearer", "admin-x-api-key"});
  return about;
}

}  // namespace

std::string openapi_document(const config::LimitOptions& limits, bool sees) {
  Json paths = Json::object();
  for (const Route& route : routes()) {
    if (route.about.empty()) continue;
    Json& path = paths[std::string(route.path)];
    const Json about = route.parse != nullptr ? body_route(route, limits) : bodiless_route(route);
    if ((route.methods & kGet) != 0) path["get"] = about;
    if ((route.methods & kPost) != 0) path["post"] = about;
    if ((route.methods & kDelete) != 0) path["delete"] = about;
  }
  Json document = {{"openapi", "3.1.0"}, {"info", {{"title", "Troupe"}, {"version", "1"}}}};
  document["paths"] = std::move(paths);
  Json schemas = Json::parse(kAnswerSchemas);
  schemas.update(Json::parse(kRequestSchemas));
  if (sees) schemas.update(Json::parse(kVisualRequestSchemas));
  document["components"] = {{"schemas", std::move(schemas)}, {"securitySchemes", key_schemes()}};
  document["security"] = security({"bearer", "x-api-key"});
  return to_text(document);
}

}  // namespace troupe::http
